// Uses this machine's camera. Browsers allow it only at localhost or over https.

export class Camera {
  #video;
  #stream = null;

  constructor(video) {
    this.#video = video;
  }

  get possible() {
    return Boolean(navigator.mediaDevices?.getUserMedia);
  }

  get on() {
    return this.#stream !== null;
  }

  async start() {
    const video = { facingMode: "environment" };
    const stream = await navigator.mediaDevices.getUserMedia({ video });
    this.stop(); // in case it was started twice
    this.#video.srcObject = this.#stream = stream;
    await this.#video.play();
  }

  stop() {
    for (const track of this.#stream?.getTracks() ?? []) track.stop();
    this.#stream = this.#video.srcObject = null;
  }

  /** Returns what it sees at this moment, as a JPEG file. */
  capture() {
    const { videoWidth: width, videoHeight: height } = this.#video;
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    canvas.getContext("2d").drawImage(this.#video, 0, 0);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.95));
  }
}
