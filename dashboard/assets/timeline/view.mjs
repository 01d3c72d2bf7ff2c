// The stretch of time on the screen, within limits: from a hundred nanoseconds to the run and a little more.
const MIN_NS = 100, MARGIN = 0.1;

export class View {
  constructor() { this.low = 0; this.high = 1; this.end = 1; }
  get length() { return this.high - this.low; }

  show(low, high) {
    const length = Math.min(Math.max(high - low, MIN_NS), this.end * (1 + 2 * MARGIN) + MIN_NS);
    const room = length * MARGIN, middle = (low + high) / 2;
    this.low = Math.min(Math.max(middle - length / 2, -room), Math.max(this.end + room - length, -room));
    this.high = this.low + length;
  }
  zoom(factor, about = (this.low + this.high) / 2) {
    const share = (about - this.low) / this.length, length = Math.max(this.length * factor, MIN_NS);
    this.show(about - length * share, about + length * (1 - share));
  }
  pan(share) { const by = this.length * share; this.show(this.low + by, this.high + by); }
}
