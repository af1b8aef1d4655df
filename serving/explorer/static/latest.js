// Asks for what was wanted last: at most one question is under way, and stale answers are dropped.

export class Latest {
  #wanted = null;
  #isAsking = false;

  /** `ask` returns a promise; `show` and `fail` get its result, unless something newer is wanted. */
  constructor(ask, show, fail) {
    Object.assign(this, { ask, show, fail });
  }

  want(...question) {
    this.#wanted = { question };
    if (!this.#isAsking) this.#run();
  }

  /** Drops what is under way. */
  drop() {
    this.#wanted = { question: null };
  }

  async #run() {
    this.#isAsking = true;
    try {
      while (this.#wanted?.question) {
        const { question } = this.#wanted;
        this.#wanted = null;
        let result;
        let settle = this.show;
        try {
          result = await this.ask(...question);
        } catch (failure) {
          [result, settle] = [failure, this.fail];
        }
        if (!this.#wanted) settle(result, ...question);
      }
    } finally {
      this.#wanted = null;
      this.#isAsking = false;
    }
  }
}
