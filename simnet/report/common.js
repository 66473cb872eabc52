// What pages with scripts share: their data, elements, colours, dark and light, paper.
const common = (() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);

  // Text enters a page as text, never as HTML: names are anybody's.
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "style") Object.assign(element.style, value);
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  function button(text, action, title) {
    const one = make("button", { type: "button", ...(title ? { title, "aria-label": title } : {}) }, text);
    one.addEventListener("click", action);
    return one;
  }

  // A canvas knows no variables of CSS, so an element that has the colour is asked for it.
  const probe = make("span", { hidden: "" });
  document.body.append(probe);
  function colour(name) {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  }

  // Draws anew when dark turns light, and on paper, which is white and `paper` wide.
  function themes(redraw, sized, paper = 680) {
    const root = document.documentElement;
    const system = matchMedia("(prefers-color-scheme: dark)");
    const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
    const press = document.getElementById("theme");
    const name = () => { press.textContent = dark() ? "Light" : "Dark"; };
    press.hidden = false;
    press.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      name();
      redraw();
    });
    system.addEventListener("change", () => { name(); redraw(); });
    name();
    let before;
    addEventListener("beforeprint", () => {
      before = root.dataset.theme;
      root.dataset.theme = "light";
      redraw();
      sized(paper);
    });
    addEventListener("afterprint", () => {
      if (before === undefined) delete root.dataset.theme;
      else root.dataset.theme = before;
      redraw();
    });
  }

  // Draws in the width that an element has, whenever that changes.
  function fitted(host, sized) {
    let width = host.clientWidth;
    new ResizeObserver(() => {
      if (host.clientWidth === width) return;
      width = host.clientWidth;
      sized(width);
    }).observe(host);
  }

  return { data, make, button, colour, themes, fitted };
})();
