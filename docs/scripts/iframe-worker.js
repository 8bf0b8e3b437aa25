/* Search in a site that is opened from a folder, without a server. There browsers start no workers,
   so the worker's script runs in a hidden frame, with the same messages. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => this.load(inner, each)), Promise.resolve());
      this.load(inner, url).then(() => {
        this.inner = inner;
        this.waiting.splice(0).forEach((data) => this.send(data));
      });
    }

    load(inner, url) {
      return new Promise((resolve, reject) => {
        const script = inner.document.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = () => reject(new Error(`could not read ${url}`));
        inner.document.head.append(script);
      });
    }

    send(data) {
      this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }));
    }

    postMessage(data) {
      if (this.inner) this.send(data);
      else this.waiting.push(data);
    }

    terminate() {}
  };
}
