// Learn classes from features, and combine them with the answer of the model: the arithmetic of
// fewmore/classifier/heads.py. Nothing here knows of the page.

// A class is { name, sum, count, seen }: the sum of its photos' features, and a key for each photo.
export function learn(known, name, photos) {
  const next = known
    ? { ...known, sum: [...known.sum], seen: [...known.seen] }
    : { name, sum: new Array(photos[0].length).fill(0), count: 0, seen: [] };
  for (const features of photos) {
    const key = features.slice(0, 16).join();
    if (next.seen.includes(key)) continue; // the same photo does not count twice
    next.seen.push(key);
    features.forEach((value, i) => (next.sum[i] += value));
    next.count += 1;
  }
  return next;
}

// The mean of few photos is longer than that of many, because noise adds to its length.
function prototype({ sum, count }, variance) {
  const mean = sum.map((value) => value / count);
  const square = Math.max(dot(mean, mean), 1e-24);
  const ofMany = Math.max(square - variance / count, square / 4);
  return mean.map((value) => value / Math.sqrt(ofMany));
}

// Among more classes there is a more similar one for every photo, known or not.
function threshold(about, classes) {
  if (about.threshold === null || !about.growth) return about.threshold;
  return about.threshold + about.growth * Math.log(classes / about.classes.length);
}

// `output` is the model's: probabilities of its classes, familiarity and features.
export function combine(about, output, learnt) {
  const length = Math.sqrt(dot(output.features, output.features)) || 1;
  const cosines = learnt.map(
    (one) => dot(output.features, prototype(one, about.variance)) / length,
  );
  // The model's most likely class has the score scale × familiarity.
  const scale = about.scale / about.temperature;
  const familiarity = Math.max(output.familiarity, ...cosines);
  const weight = (cosine) => Math.exp(scale * (cosine - familiarity));
  const highest = Math.max(...output.probabilities);
  const ofModel = weight(output.familiarity) / highest;
  const weights = learnt.length
    ? [...Array.from(output.probabilities, (p) => p * ofModel), ...cosines.map(weight)]
    : Array.from(output.probabilities);
  const total = weights.reduce((a, b) => a + b);
  const names = [...about.classes, ...learnt.map((one) => one.name)];
  const limit = threshold(about, names.length);
  const ranked = names
    .map((name, i) => ({ name, confidence: weights[i] / total }))
    .sort((a, b) => b.confidence - a.confidence);
  return { ranked, familiarity, known: limit === null || familiarity >= limit };
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i += 1) sum += a[i] * b[i];
  return sum;
}
