// Search on pages that are opened from a disk. There a browser refuses `new Worker(file)`, so the worker's script
// runs in a hidden frame, which takes and sends the messages of a worker. The theme's plugin `offline` stores the
// index as a script, which can be read without a server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.started = new Promise((resolve) => frame.addEventListener("load", () => {
        const inside = frame.contentWindow;
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        const script = inside.document.createElement("script");
        script.onload = () => resolve(inside);
        script.src = url;
        inside.document.head.append(script);
      }, { once: true }));
      document.body.append(frame);
    }

    postMessage(data) {
      this.started.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }
  };
}
