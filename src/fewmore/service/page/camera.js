// Uses this machine's camera. Browsers allow it only at localhost or over https.

const INTERVAL = 200; // milliseconds between two photos while the button is held

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

  /**
   * Calls take() for as long as the button is held, by a finger, the mouse, Space or Enter. What
   * clicks without pressing, such as a screen reader, takes one.
   */
  onHold(button, take) {
    let timer = null;
    let held = false; // a click after holding takes no more
    const start = () => {
      if (timer !== null || !this.on) return;
      held = true;
      take();
      timer = setInterval(take, INTERVAL);
    };
    const stop = () => {
      clearInterval(timer);
      timer = null;
    };
    button.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.on) return;
      button.setPointerCapture(event.pointerId);
      start();
    });
    button.addEventListener("keydown", (event) => {
      if (![" ", "Enter"].includes(event.key) || !this.on) return;
      event.preventDefault(); // else it clicks, too
      start();
    });
    for (const end of ["pointerup", "pointercancel", "keyup", "blur"]) {
      button.addEventListener(end, stop);
    }
    button.addEventListener("click", () => {
      if (this.on && !held) take();
      held = false;
    });
    button.addEventListener("contextmenu", (event) => this.on && event.preventDefault());
  }

  /** Returns what it sees at this moment, as a JPEG file; null if that is nothing yet. */
  capture() {
    const { videoWidth: width, videoHeight: height } = this.#video;
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    canvas.getContext("2d").drawImage(this.#video, 0, 0);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.95));
  }
}
