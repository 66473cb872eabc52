// The map of a decision: a plane of computed points, and a marker that tells what is said at one of them.
(() => {
  "use strict";
  const { data, make, button, colour, themes, fitted } = common;
  const { x, y, cells, texts } = data;
  const HEAD = 3; // what a cell has before its rows: what to take, a warning, the margin
  const WIDTH = 1 + data.headings.length; // and what a row has
  const SHADES = [0, 0.1, 0.3, data.shaded];
  const plane = document.getElementById("plane");
  const canvas = plane.querySelector("canvas");
  const marker = document.getElementById("marker");
  const state = { column: 0, row: 0 };
  let room = { left: 64, top: 8, width: 0, height: 0 };

  // Where points stand: logarithms, from 0 to 1

  function scale(axis) {
    const logs = axis.values.map(Math.log);
    const [low, high] = [logs[0], logs.at(-1)];
    const to = (value) => (high > low ? (Math.log(value) - low) / (high - low) : 0.5);
    const at = axis.values.map(to);
    const edges = [0, ...at.slice(1).map((one, number) => (one + at[number]) / 2), 1];
    const nearest = (share) => at.reduce((best, one, number) => (Math.abs(one - share) < Math.abs(at[best] - share) ? number : best), 0);
    return { to, at, edges, nearest };
  }
  const along = { x: scale(x), y: scale(y) };
  const cell = (column, row) => cells[row * x.values.length + column];
  // The last of the choices stands for cells in which some are tied.
  const winner = (one) => (one[2] === 0 ? data.choices.length - 1 : one[HEAD]);
  const strength = (margin) => 0.2 + 0.7 * Math.sqrt(margin < 0 ? 1 : Math.min(1, margin / data.shaded));
  const left = (share) => room.left + share * room.width;
  const top = (share) => room.top + (1 - share) * room.height;

  // The plane

  function edge(paint, differ) {
    paint.beginPath();
    for (let row = 0; row < y.values.length; row++) {
      for (let column = 0; column < x.values.length; column++) {
        const one = cell(column, row);
        if (column && differ(one, cell(column - 1, row))) {
          paint.moveTo(left(along.x.edges[column]), top(along.y.edges[row]));
          paint.lineTo(left(along.x.edges[column]), top(along.y.edges[row + 1]));
        }
        if (row && differ(one, cell(column, row - 1))) {
          paint.moveTo(left(along.x.edges[column]), top(along.y.edges[row]));
          paint.lineTo(left(along.x.edges[column + 1]), top(along.y.edges[row]));
        }
      }
    }
    paint.stroke();
  }

  // Labels stand in the middle of the largest stretch of their exchange along a row.
  function labels(paint) {
    const longest = new Map();
    for (let row = 0; row < y.values.length; row++) {
      for (let from = 0; from < x.values.length;) {
        let to = from + 1;
        while (to < x.values.length && winner(cell(to, row)) === winner(cell(from, row))) to++;
        const key = winner(cell(from, row));
        const length = left(along.x.edges[to]) - left(along.x.edges[from]);
        const found = longest.get(key) || [];
        if (!found.length || length > found[0].length + 1) longest.set(key, [{ length, from, to, row }]);
        else if (length > found[0].length - 1) found.push({ length, from, to, row });
        from = to;
      }
    }
    paint.textAlign = "center";
    paint.textBaseline = "middle";
    paint.lineWidth = 3;
    paint.strokeStyle = colour("ground");
    paint.fillStyle = colour("ink");
    const taken = [];
    for (const [key, found] of [...longest].sort((one, other) => other[1][0].length - one[1][0].length)) {
      const { from, to, row, length } = found[Math.floor(found.length / 2)];
      const text = data.choices[key][0];
      const half = paint.measureText(text).width / 2 + 4;
      if (2 * half > length) continue;
      const place = [(left(along.x.edges[from]) + left(along.x.edges[to])) / 2, Math.min(Math.max(top(along.y.at[row]), room.top + 10), room.top + room.height - 10)];
      if (taken.some(([px, py, other]) => Math.abs(py - place[1]) < 16 && Math.abs(px - place[0]) < half + other)) continue;
      taken.push([...place, half]);
      paint.strokeText(text, ...place);
      paint.fillText(text, ...place);
    }
  }

  function marks(paint) {
    paint.fillStyle = colour("soft");
    paint.strokeStyle = colour("line");
    paint.lineWidth = 1;
    paint.textBaseline = "top";
    paint.textAlign = "center";
    let last = -Infinity;
    for (const [value, text] of x.marks) {
      const place = left(along.x.to(value));
      const half = paint.measureText(text).width / 2;
      const at = Math.min(Math.max(place, half), room.left + room.width - half + 8);
      if (at - half < last + 6) continue;
      last = at + half;
      paint.fillText(text, at, room.top + room.height + 6);
    }
    paint.fillText(x.label, room.left + room.width / 2, room.top + room.height + 22);
    paint.textAlign = "right";
    paint.textBaseline = "middle";
    for (const [value, text] of y.marks) paint.fillText(text, room.left - 6, Math.min(Math.max(top(along.y.to(value)), 7), room.top + room.height));
    paint.textAlign = "left";
    paint.textBaseline = "top";
    paint.fillText(y.label, 0, 0);
    paint.strokeRect(room.left, room.top, room.width, room.height);
  }

  function drawn(width = plane.clientWidth) {
    const ratio = devicePixelRatio || 1;
    const paint = canvas.getContext("2d");
    const font = "12px system-ui, sans-serif";
    paint.font = font;
    const room_y = Math.max(...y.marks.map(([, text]) => paint.measureText(text).width)) + 10;
    const height = Math.round(Math.min(Math.max(0.62 * width, 300), 560));
    room = { left: room_y, top: 22, width: Math.max(120, width - room_y - 10), height: height - 22 - 40 };
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    paint.scale(ratio, ratio);
    paint.font = font;
    for (let row = 0; row < y.values.length; row++) {
      for (let column = 0; column < x.values.length; column++) {
        const one = cell(column, row);
        const [from, to] = [left(along.x.edges[column]), left(along.x.edges[column + 1])].map((place) => Math.round(place * ratio) / ratio);
        const [low, high] = [top(along.y.edges[row]), top(along.y.edges[row + 1])].map((place) => Math.round(place * ratio) / ratio);
        paint.globalAlpha = strength(one[2]);
        paint.fillStyle = data.choices[winner(one)][1];
        paint.fillRect(from, high, to - from, low - high);
      }
    }
    paint.globalAlpha = 1;
    paint.strokeStyle = colour("ink");
    paint.lineWidth = 1;
    edge(paint, (one, other) => winner(one) !== winner(other));
    paint.lineWidth = 1.5;
    paint.setLineDash([2, 4]);
    edge(paint, (one, other) => (one[1] < 0) !== (other[1] < 0));
    paint.setLineDash([]);
    if (data.links.length) {
      paint.save();
      paint.beginPath();
      paint.rect(room.left, room.top, room.width, room.height);
      paint.clip();
      paint.fillStyle = paint.strokeStyle = colour("ink");
      paint.lineWidth = 0.7;
      const places = data.links[0].map((value, number) => [left(along.x.to(value)), top(along.y.to(data.links[1][number]))]);
      paint.beginPath();
      for (const place of places) paint.lineTo(...place);
      paint.stroke();
      for (const place of places) paint.fillRect(place[0] - 1.5, place[1] - 1.5, 3, 3);
      paint.restore();
    }
    labels(paint);
    marks(paint);
    if (data.own !== null) {
      const [px, py] = [left(along.x.at[data.own % x.values.length]), top(along.y.at[Math.floor(data.own / x.values.length)])];
      for (const [name, thick] of [["ground", 5], ["ink", 2]]) {
        paint.strokeStyle = colour(name);
        paint.lineWidth = thick;
        paint.beginPath();
        for (const [dx, dy] of [[1, 1], [1, -1]]) {
          paint.moveTo(px - 5 * dx, py - 5 * dy);
          paint.lineTo(px + 5 * dx, py + 5 * dy);
        }
        paint.stroke();
      }
    }
    placed();
  }

  // The marker, and what is said where it stands

  function placed() {
    marker.style.left = `${left(along.x.at[state.column])}px`;
    marker.style.top = `${top(along.y.at[state.row])}px`;
  }

  function said() {
    const one = cell(state.column, state.row);
    const here = `${x.label} ${x.texts[state.column]}, ${y.label} ${y.texts[state.row]}`;
    const own = state.row * x.values.length + state.column === data.own;
    document.getElementById("here").textContent = here + (own ? ", as asked" : "");
    document.getElementById("take").textContent = texts[one[0]];
    const warning = document.getElementById("warning");
    warning.textContent = one[1] < 0 ? "" : texts[one[1]];
    warning.hidden = one[1] < 0;
    const rows = [];
    for (let start = HEAD; start < one.length; start += WIDTH) {
      const [label, shade] = data.choices[one[start]];
      const name = make("th", { scope: "row" }, make("i", { class: "swatch", style: { background: shade } }), " ", label);
      rows.push(make("tr", start === HEAD ? { class: "best" } : {}, name, ...one.slice(start + 1, start + WIDTH).map((place) => make("td", {}, texts[place]))));
    }
    document.querySelector("#ranking tbody").replaceChildren(...rows);
    marker.setAttribute("aria-valuenow", String(state.row * x.values.length + state.column));
    marker.setAttribute("aria-valuetext", `${here}: ${texts[one[0]]}`);
  }

  function moved(column, row) {
    state.column = Math.min(Math.max(column, 0), x.values.length - 1);
    state.row = Math.min(Math.max(row, 0), y.values.length - 1);
    placed();
    said();
  }

  function asked() {
    if (data.own === null) moved(Math.floor(x.values.length / 2), Math.floor(y.values.length / 2));
    else moved(data.own % x.values.length, Math.floor(data.own / x.values.length));
  }

  function pointed(event) {
    const box = canvas.getBoundingClientRect();
    moved(along.x.nearest((event.clientX - box.left - room.left) / room.width),
          along.y.nearest(1 - (event.clientY - box.top - room.top) / room.height));
  }

  // A finger on the plane scrolls the page; on the marker it drags. A mouse drags from anywhere.
  function dragged(from, mouse) {
    from.addEventListener("pointerdown", (event) => {
      if (event.button || (mouse && event.pointerType === "touch")) return;
      event.preventDefault();
      marker.focus({ preventScroll: true });
      from.setPointerCapture(event.pointerId);
      pointed(event);
    });
    from.addEventListener("pointermove", (event) => { if (from.hasPointerCapture(event.pointerId)) pointed(event); });
  }
  dragged(marker, false);
  dragged(canvas, true);
  // A tap: a browser may take one that follows a drag at once for part of it, and send no click.
  let tapped = null;
  canvas.addEventListener("pointerdown", (event) => { tapped = event.pointerType === "touch" ? event : null; });
  canvas.addEventListener("pointercancel", () => { tapped = null; });
  canvas.addEventListener("pointerup", (event) => {
    if (tapped && Math.hypot(event.clientX - tapped.clientX, event.clientY - tapped.clientY) < 10) pointed(event);
    tapped = null;
  });

  const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1] };
  marker.addEventListener("keydown", (event) => {
    if (event.key === "Home") asked();
    else if (event.key in STEPS) moved(...[state.column, state.row].map((at, way) => at + STEPS[event.key][way] * (event.shiftKey ? 5 : 1)));
    else return;
    event.preventDefault();
  });

  const present = data.choices.map((_, place) => place).filter((place) => cells.some((one) => winner(one) === place));
  const edged = cells.some((one) => one[1] < 0) && cells.some((one) => one[1] >= 0);
  document.getElementById("key").append(
    ...present.flatMap((place) => [make("i", { class: "swatch", style: { background: data.choices[place][1] } }), ` ${data.choices[place][0]}  `]),
  );
  document.getElementById("shades").append(
    "The runner-up takes longer by ",
    ...SHADES.flatMap((margin, number) => [make("i", { class: "swatch", style: { background: colourless(strength(margin)) } }), ` ${100 * margin} %${number < SHADES.length - 1 ? ", " : " and more. "}`]),
    ...(data.own === null ? [] : ["The cross is what was asked. "]),
    ...(data.links.length ? ["Small squares are the links of the scenario over time. "] : []),
    ...(edged ? ["The dotted line parts what is measured from what is extrapolated." ] : []),
  );
  function colourless(alpha) { return `color-mix(in srgb, var(--ink) ${100 * alpha}%, transparent)`; }
  if (data.own !== null) document.getElementById("controls").append(button("back to what was asked", () => { asked(); marker.focus(); }));
  marker.setAttribute("aria-valuemin", "0");
  marker.setAttribute("aria-valuemax", String(cells.length - 1));

  for (const one of document.querySelectorAll("[data-scripted]")) one.hidden = false;
  asked();
  themes(() => drawn(), drawn);
  drawn();
  fitted(plane, drawn);
  document.documentElement.dataset.ready = "yes";
})();
