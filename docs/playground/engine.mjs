// The WebAssembly module: requests in, answers out. See crates/playground/src/exports.rs.

// Each has three files beside the page.
export const MODELS = ["stories260k", "char-lm"];
export const files = (model) => ["config.json", "safetensors", "tokenizer.json"].map((end) => `${model}.${end}`);

export class Engine {
  // `module` and the three files of a model, as bytes.
  static async make(module, parts) {
    const { instance } = await WebAssembly.instantiate(module, {});
    const engine = new Engine();
    engine.wasm = instance.exports;
    parts.forEach((bytes, n) => engine.put(n + 1, bytes));
    engine.finish(engine.wasm.load());
    return engine;
  }

  // The answer to a request: its words, and numbers that last until the next request.
  ask(request) {
    this.put(0, new TextEncoder().encode(JSON.stringify(request)));
    return this.finish(this.wasm.ask());
  }

  put(slot, bytes) {
    const place = this.wasm.buffer(slot, bytes.length);
    new Uint8Array(this.wasm.memory.buffer, place, bytes.length).set(bytes);
  }

  finish(failed) {
    const { memory, text, text_length, numbers, numbers_length } = this.wasm;
    const words = new TextDecoder().decode(new Uint8Array(memory.buffer, text(), text_length()));
    if (failed) throw new Error(words);
    return {
      words: words === "" ? {} : JSON.parse(words),
      numbers: numbers_length() === 0 ? new Float32Array() : new Float32Array(memory.buffer, numbers(), numbers_length()),
    };
  }
}
