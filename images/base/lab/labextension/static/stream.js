// Follows what the server tells of itself, while somebody looks. An answer that is left before its end counts
// as no activity anywhere, and a tab in the background asks for nothing at all.

const SILENCE = 30_000; // ms without a line after which a stream counts as broken; one comes every 10 s
const SHORTEST = 5_000; // ms to wait after the first failure, then twice as long each time
const LONGEST = 60_000;

/** The lines of an answer that goes on. */
async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    yield* parts;
  }
}

export class Stream {
  /**
   * @param {(signal: AbortSignal) => Promise<Response>} ask asks the server for the stream
   * @param {(answer: object) => void} take is given each answer
   * @param {() => void} never is called when this server has no such stream
   */
  constructor(ask, take, never) {
    Object.assign(this, { ask, take, never, failures: 0, timer: 0, abort: null });
    this.follow = () => (document.hidden ? this.leave() : this.begin());
    document.addEventListener("visibilitychange", this.follow);
    this.follow();
  }

  /** End it for good. */
  dispose() {
    document.removeEventListener("visibilitychange", this.follow);
    this.leave();
  }

  leave() {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = null;
  }

  begin() {
    if (this.abort) return;
    clearTimeout(this.timer);
    this.failures = 0;
    this.run();
  }

  async run() {
    const abort = (this.abort = new AbortController());
    let status = 0;
    try {
      status = await this.read(abort);
    } catch {
      // The server is away, or the stream was left: what comes next is the same.
    }
    abort.abort();
    if (this.abort !== abort) return;
    if (status === 404) {
      this.dispose();
      this.never();
      return;
    }
    const wait = Math.min(SHORTEST * 2 ** this.failures, LONGEST);
    this.failures += 1;
    this.timer = setTimeout(() => this.run(), wait);
  }

  async read(abort) {
    let alarm = setTimeout(() => abort.abort(), SILENCE);
    try {
      const response = await this.ask(abort.signal);
      if (!response.ok) return response.status;
      for await (const line of lines(response.body)) {
        if (this.abort !== abort) break;
        clearTimeout(alarm);
        alarm = setTimeout(() => abort.abort(), SILENCE);
        this.take(JSON.parse(line));
        this.failures = 0;
      }
      return response.status;
    } finally {
      clearTimeout(alarm);
    }
  }
}
