// What the report does by itself: charts on one axis, filters, a table to sort, dark and light.
(() => {
  "use strict";
  const { data, make, button, colour, themes, fitted } = common;
  const host = document.getElementById("charts");
  const state = { axis: "time", range: null, hidden: new Set(), without: new Set() };
  const linked = [];
  const others = [];

  // Words

  const UNITS = {
    seconds: [["h", 3600], ["min", 60], ["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]],
    rate: [["Tbit/s", 1.25e11], ["Gbit/s", 1.25e8], ["Mbit/s", 1.25e5], ["kbit/s", 125], ["bit/s", 0.125]],
    bytes: [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["byte", 1]],
  };

  const digits = (value, count = 4) => String(Number(value.toPrecision(count)));

  function told(value, kind) {
    if (value == null) return "-";
    if (!UNITS[kind]) return digits(value);
    if (value === 0) return kind === "seconds" ? "0 s" : `0 ${UNITS[kind].at(-1)[0]}`;
    const size = Math.abs(value);
    const [name, factor] = UNITS[kind].find((unit) => size >= unit[1]) || UNITS[kind].at(-1);
    return `${digits(value / factor)} ${name}`;
  }

  // One unit for all marks of an axis: the largest in which its greatest value is at least 2.
  function unitOf(values, kind) {
    if (!UNITS[kind]) return ["", 1];
    let largest = 0;
    for (const value of values) if (Math.abs(value) > largest) largest = Math.abs(value);
    return UNITS[kind].find((unit) => largest >= 2 * unit[1]) || UNITS[kind].at(-1);
  }

  const ofPolicy = (policy) => policy.colour || colour("ink");
  const faint = (text) => (/^#[0-9a-f]{6}$/i.test(text) ? `${text}33` : "rgba(128,128,128,0.2)");
  const policies = () => data.policies.filter((policy) => !state.hidden.has(policy.name));
  const used = (policy, at) => !state.without.has(policy.choice[at]);

  // The axis that charts share: where an iteration stands, and where it ends.

  const position = (policy) => (state.axis === "time" ? policy.start : policy.iteration);
  function end(policy) {
    if (state.axis === "iteration") return policy.iteration.at(-1) + 1;
    return policy.start[0] + policy.after.at(-1);
  }
  const whole = () => [0, Math.max(1e-9, ...data.policies.map(end))];

  const zoomed = (range) => {
    const [low, high] = whole();
    const from = Math.max(low, range[0]);
    const to = Math.min(high, range[1]);
    // A rounding error of the axis is as far as one can go in.
    state.range = to - from < 1e-9 * (high - low) ? state.range : [from, to];
    for (const chart of linked) chart.setScale("x", { min: state.range[0], max: state.range[1] });
  };

  function zoom(factor) {
    const [low, high] = state.range || whole();
    const middle = (low + high) / 2;
    zoomed([middle - ((high - low) / 2) * factor, middle + ((high - low) / 2) * factor]);
  }

  function sized(chart, wanted) {
    chart.setSize({ width: Math.max(240, wanted), height: chart.height });
  }

  // One chart. Each series has x and y of its own: { label, colour, x, y, low, high, steps, dash }.
  function draw(place, title, series, options = {}) {
    const { height = 160, kind = "", link = true, xKind = null, log = false, hooks = {}, said = null } = options;
    const figure = make("div", { class: "chart", role: "img", "aria-label": title });
    const heading = make("h3", {}, title);
    figure.append(heading);
    place.append(figure);
    const tables = [];
    const drawn = [{}];
    const bands = [];
    for (const one of series) {
      if (one.low) {
        tables.push([one.x, one.high, one.low]);
        bands.push({ series: [drawn.length, drawn.length + 1], fill: faint(one.colour) });
        for (let edge = 0; edge < 2; edge++) drawn.push({ stroke: "transparent", width: 0, points: { show: false } });
      }
      tables.push([one.x, one.y]);
      drawn.push({
        label: one.label, stroke: one.colour, width: one.width ?? 1.6, dash: one.dash, show: true,
        points: { show: one.points ?? one.x.length === 1, size: 8, fill: one.colour },
        paths: one.points === true || one.bare ? () => null : one.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
      });
    }
    const ys = series.flatMap((one) => [...one.y, ...(one.low || []), ...(one.high || [])]).filter((y) => y != null);
    const [name, factor] = unitOf(ys, kind);
    if (name) heading.append(` [${name}]`);
    const xs = link ? whole() : series.flatMap((one) => one.x);
    const along = xKind ?? (state.axis === "time" ? "seconds" : "");
    const [xName, xFactor] = unitOf(xs, along);
    const ink = colour("soft");
    const axis = { stroke: ink, font: "12px system-ui, sans-serif",
                   grid: { stroke: colour("line"), width: 0.5 }, ticks: { stroke: colour("line"), width: 0.5 } };
    const marks = (scale) => (_, splits) => splits.map((value) => (value == null ? "" : digits(value / scale, 6)));
    const positive = ys.filter((y) => y > 0);
    const far = log && positive.length && positive.length === ys.length && least(positive, -1) > 12 * least(positive, 1);
    const chart = new uPlot(
      {
        width: Math.max(240, figure.clientWidth), height, series: drawn, bands, legend: { show: false },
        scales: {
          x: { time: false, range: (_, low, high) => (link ? state.range || whole() : options.xRange || [low, high]) },
          y: far ? { distr: 3 } : { range: options.yRange || ((_, low, high) => spread(low, high)) },
        },
        axes: [
          { ...axis, space: 60, values: marks(xFactor), label: options.xLabel === undefined ? undefined : `${options.xLabel}${xName ? ` [${xName}]` : ""}`,
            labelFont: "12px system-ui, sans-serif", labelSize: 18, size: 30,
            incrs: state.axis === "iteration" && link ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6] : undefined,
            splits: xFactor === 1 ? undefined : rounds(xFactor) },
          { ...axis, size: 54, values: options.yMarks === false ? () => [] : marks(factor),
            grid: options.yMarks === false ? { show: false } : axis.grid, ticks: options.yMarks === false ? { show: false } : axis.ticks, splits: far || factor === 1 ? undefined : rounds(factor) },
        ],
        cursor: {
          y: false, drag: { x: true, y: false, setScale: false }, points: { show: !options.bare },
          sync: link ? { key: "run", scales: ["x", null], setSeries: false } : undefined,
        },
        hooks: {
          ...hooks,
          setSelect: [(one) => {
            if (one.select.width < 4) return;
            const range = [one.select.left, one.select.left + one.select.width].map((left) => one.posToVal(left, "x"));
            one.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            if (link) zoomed(range);
            else one.setScale("x", { min: range[0], max: range[1] });
          }],
          setCursor: said ? [(one) => said(one.cursor.left < 0 ? null : one.posToVal(one.cursor.left, "x"), one)] : [],
        },
      },
      tables.length ? uPlot.join(tables) : [[]],
      figure,
    );
    // A double click shows the whole run, in all charts that are linked.
    if (link) chart.over.addEventListener("dblclick", () => zoomed(whole()));
    (link ? linked : others).push(chart);
    return chart;
  }

  function least(values, sign) {
    let found = values[0];
    for (const value of values) if (sign * value < sign * found) found = value;
    return found;
  }

  // From zero, unless something lies below it.
  function spread(low, high) {
    if (low == null || high == null) return [0, 1];
    const room = 0.06 * (Math.max(high, 0) - Math.min(low, 0)) || 1;
    return [low < 0 ? low - room : 0, high > 0 ? high + room : room];
  }

  // Round numbers of the unit that is shown, not of the SI unit below it.
  function rounds(factor) {
    return (chart, number, low, high, step) => {
      const power = 10 ** Math.floor(Math.log10(step / factor));
      const round = [1, 2, 5, 10].map((one) => one * power).find((one) => one * factor >= step * 0.999) * factor;
      const found = [];
      for (let at = Math.ceil(low / round - 1e-9); at * round <= high * (1 + 1e-12); at++) found.push(at * round);
      return found;
    };
  }

  // The run on one axis

  function lines(of) {
    return policies().map((policy) => {
      const one = of(policy);
      const shown = (values) => values && values.map((value, at) => (used(policy, at) ? value : null));
      return { label: policy.name, colour: ofPolicy(policy), dash: policy.colour ? undefined : [6, 4],
               x: position(policy), ...one, y: shown(one.y), low: shown(one.low), high: shown(one.high) };
    });
  }

  // What all policies met is one line where they agree about it; else each has its own.
  function weather(column) {
    const shown = policies();
    const steps = { steps: true, width: 1.3 };
    const same = shown.every((one) => one[column].length === shown[0][column].length
      && one[column].every((value, at) => value === shown[0][column][at]));
    if (state.axis === "time" || same) {
      const met = (same ? shown.slice(0, 1) : shown).flatMap((policy) => position(policy).map((x, at) => [x, policy[column][at]]));
      met.sort((one, other) => one[0] - other[0]);
      const unique = met.filter((one, at) => at === 0 || one[0] !== met[at - 1][0]);
      return [{ label: column, colour: colour("soft"), x: unique.map((one) => one[0]), y: unique.map((one) => one[1]), ...steps }];
    }
    return lines((policy) => ({ y: policy[column], ...steps }));
  }

  const ROW = 38;
  // A strip per policy, in the colours of what it chose.
  function strips(place, said) {
    const shown = policies();
    const series = shown.map((policy) => ({ label: policy.name, colour: "transparent", x: position(policy), y: policy.choice, bare: true, points: false }));
    const paint = (chart) => {
      const { ctx, bbox } = chart;
      const scale = devicePixelRatio;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      ctx.textBaseline = "top";
      ctx.textAlign = "left";
      const room = bbox.height / shown.length;
      ctx.font = `${12 * scale}px system-ui, sans-serif`;
      shown.forEach((policy, row) => {
        const top = bbox.top + row * room;
        ctx.fillStyle = colour("soft");
        ctx.fillText(short(policy.name), bbox.left + 2 * scale, top + 3 * scale);
        const x = position(policy);
        for (let from = 0; from < x.length;) {
          let to = from + 1;
          while (to < x.length && policy.choice[to] === policy.choice[from]) to++;
          if (used(policy, from)) {
            const left = chart.valToPos(x[from], "x", true);
            const right = chart.valToPos(to < x.length ? x[to] : end(policy), "x", true);
            ctx.fillStyle = data.choices[policy.choice[from]][1];
            ctx.fillRect(left, top + 18 * scale, Math.max(right - left, 0.5), room - 20 * scale);
          }
          from = to;
        }
      });
      ctx.restore();
    };
    draw(place, "choice: the exchange that was used", series, {
      height: shown.length * ROW + 66, yMarks: false, yRange: () => [0, 1], bare: true, hooks: { draw: [paint] }, said, xLabel: axisName(),
    });
  }

  const short = (name) => {
    const line = name.replace(/\s+/g, " ");
    return line.length <= 40 ? line : `${line.slice(0, 39)}…`;
  };
  const axisName = () => (state.axis === "time" ? "simulated time" : "iteration");

  // Where an iteration is that was under way at x.
  function at(policy, x) {
    const where = position(policy);
    let low = 0;
    let high = where.length - 1;
    if (x < where[0] || x > end(policy)) return -1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (where[middle] <= x) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  function readout(table) {
    return (x) => {
      const rows = [];
      if (x != null) {
        for (const policy of policies()) {
          const index = at(policy, x);
          if (index < 0) continue;
          const within = policy.low ? ` (${told(policy.low[index], "seconds")} to ${told(policy.high[index], "seconds")})` : "";
          const cells = [String(policy.iteration[index]), told(policy.start[index], "seconds"), told(policy.time[index], "seconds") + within,
                         data.choices[policy.choice[index]][0], told(policy.bandwidth[index], "rate"), told(policy.latency[index], "seconds")];
          rows.push(make("tr", {}, make("th", { scope: "row" }, make("i", { class: "swatch", style: { background: ofPolicy(policy) } }), " ", policy.name),
                         ...cells.map((cell, column) => make("td", column === 3 ? { class: "text" } : {}, cell))));
        }
      }
      if (rows.length) table.tBodies[0].replaceChildren(...rows);
    };
  }

  // What was learnt

  function learning(place) {
    for (const [column, title] of [["accuracy", "accuracy on data held out"], ["loss", "loss on data held out"]]) {
      const series = policies().filter((policy) => data.learnt[policy.name]).map((policy) => {
        const one = data.learnt[policy.name];
        return { label: policy.name, colour: ofPolicy(policy), dash: policy.colour ? undefined : [6, 4],
                 x: state.axis === "time" ? one.after : one.done, y: one[column] };
      });
      draw(place, title, series, { height: 220, link: false, xKind: state.axis === "time" ? "seconds" : "",
                                   xLabel: state.axis === "time" ? "simulated time" : "iterations done" });
    }
  }

  // Single iterations: what workers did, messages between them, and how these loaded the links

  const WHAT = { compute: "#7d8c99", select: "#e69f00", communicate: "#56a3d9", wait: "rgba(128,136,144,0.35)", software: "#009e73" };
  const LANE = 44;
  const MOST_WORKERS = 32;
  const MOST_HOSTS = 128;

  function messages(place, one) {
    const workers = [...new Set([...one.spans.map((span) => span[0]), ...one.messages.flatMap((message) => [message[0], message[1]])])].sort((a, b) => a - b);
    const rows = new Map(workers.slice(0, MOST_WORKERS).map((worker, row) => [worker, row]));
    const resources = [...new Set(one.spans.map((span) => span[1]))];
    const last = Math.max(1e-12, ...[...one.spans.map((span) => span[4]), ...one.messages.map((message) => message[4])].map(Number));
    const line = make("p", { class: "told" });
    const lanes = (chart) => chart.bbox.height / rows.size;
    const paint = (chart) => {
      const { ctx, bbox } = chart;
      const scale = devicePixelRatio;
      const x = (time) => chart.valToPos(time, "x", true);
      const lane = lanes(chart);
      const label = 15 * scale;
      const band = (lane - label - 4 * scale) / Math.max(1, resources.length);
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      for (const [worker, resource, what, start, finish] of one.spans) {
        if (!rows.has(worker)) continue;
        ctx.fillStyle = WHAT[what] || "#cc79a7";
        ctx.fillRect(x(start), bbox.top + rows.get(worker) * lane + label + resources.indexOf(resource) * band, Math.max(x(finish) - x(start), 0.5), band);
      }
      ctx.strokeStyle = colour("ink");
      ctx.globalAlpha = one.messages.length > 400 ? 0.25 : 0.6;
      ctx.lineWidth = scale;
      for (const [src, dst, , start, finish] of one.messages) {
        if (!rows.has(src) || !rows.has(dst)) continue;
        const middle = (row) => bbox.top + row * lane + label + (lane - label) / 2;
        ctx.beginPath();
        ctx.moveTo(x(start), middle(rows.get(src)));
        ctx.lineTo(x(finish), middle(rows.get(dst)));
        ctx.stroke();
      }
      ctx.globalAlpha = 1;
      ctx.fillStyle = colour("soft");
      ctx.textAlign = "left";
      ctx.textBaseline = "top";
      ctx.font = `${12 * scale}px system-ui, sans-serif`;
      for (const [worker, row] of rows) ctx.fillText(`worker ${worker}`, bbox.left + 2 * scale, bbox.top + row * lane + scale);
      ctx.restore();
    };
    const said = (time, chart) => {
      if (time == null) return;
      const worker = [...rows.keys()][Math.floor((chart.cursor.top * devicePixelRatio) / lanes(chart))];
      const does = one.spans.filter((span) => span[0] === worker && span[3] <= time && time < span[4]).map((span) => `${span[2]} (${span[1]})`);
      const sends = one.messages.filter((message) => (message[0] === worker || message[1] === worker) && message[3] <= time && time < message[4])
        .map((message) => `${message[5]} ${message[0]} → ${message[1]}, ${told(message[2], "bytes")}`);
      const more = sends.length > 4 ? `, and ${sends.length - 4} more` : "";
      line.textContent = worker == null ? "" : `${told(time, "seconds")}, worker ${worker}: ${[...does, ...sends.slice(0, 4)].join("; ") || "nothing"}${more}`;
    };
    draw(place, "workers and messages", [{ label: "", colour: "transparent", x: [0, last], y: [0, 1], bare: true, points: false }], {
      height: rows.size * LANE + 66, link: false, xKind: "seconds", xLabel: "time since the iteration began", bare: true,
      yMarks: false, yRange: () => [0, 1], hooks: { draw: [paint] }, said,
    });
    const key = [...new Set(one.spans.map((span) => span[2]))].flatMap((what) => [make("i", { class: "swatch", style: { background: WHAT[what] || "#cc79a7" } }), ` ${what}. `]);
    place.append(line, make("p", { class: "note" }, ...key,
      `Lines are messages, from when they start at the sender to when they arrive.${resources.length > 1 ? ` Of a worker, from above: ${resources.join(", ")}.` : ""}`
      + (workers.length > rows.size ? ` Shown are the first ${rows.size} of ${workers.length} workers.` : "")
      + (one.whole ? "" : " It had too much to show: this is its beginning.")));
  }

  // Hosts stand on a circle; a switch stands in the middle of its neighbours.
  function placed(links) {
    const nodes = [...new Set(links.flat())];
    const hosts = nodes.filter((node) => node.startsWith("host:")).sort((a, b) => Number(a.slice(5)) - Number(b.slice(5)));
    const at = new Map(nodes.map((node) => [node, [0, 0]]));
    hosts.forEach((host, number) => {
      const angle = (2 * Math.PI * number) / hosts.length - Math.PI / 2;
      at.set(host, [Math.cos(angle), Math.sin(angle)]);
    });
    const near = new Map(nodes.map((node) => [node, new Set()]));
    for (const [from, to] of links) {
      near.get(from).add(to);
      near.get(to).add(from);
    }
    const switches = nodes.filter((node) => !node.startsWith("host:"));
    for (let round = 0; round < 100; round++) {
      for (const node of switches) {
        const around = [...near.get(node)].map((other) => at.get(other));
        at.set(node, [0, 1].map((side) => around.reduce((sum, one) => sum + one[side], 0) / around.length));
      }
    }
    // Those in the same place, such as the core of a fat tree, step aside in a ring.
    const groups = new Map();
    for (const node of switches) {
      const key = at.get(node).map((value) => Math.round(value * 20)).join();
      groups.set(key, [...(groups.get(key) || []), node]);
    }
    for (const group of groups.values()) {
      if (group.length > 1) {
        group.forEach((node, number) => {
          const angle = (2 * Math.PI * number) / group.length;
          const [x, y] = at.get(node);
          at.set(node, [x + 0.15 * Math.cos(angle), y + 0.15 * Math.sin(angle)]);
        });
      }
    }
    return { at, hosts };
  }

  function topology(place, one) {
    const { links, routes } = data.kept;
    const loads = links.map(() => 0);
    for (const [src, dst, nbytes] of one.messages) for (const link of routes[`${src},${dst}`] || []) loads[link] += nbytes;
    const order = loads.map((_, link) => link).sort((a, b) => loads[b] - loads[a]);
    const name = (link) => `${links[link][0]} → ${links[link][1]}`;
    place.append(make("p", { class: "note" }, "Links between workers, as wide and strong as the bytes that these messages put on them. Most are on "
      + order.slice(0, 3).filter((link) => loads[link]).map((link) => `${name(link)} (${told(loads[link], "bytes")})`).join(", ") + "."));
    const { at, hosts } = placed(links);
    if (hosts.length > MOST_HOSTS) {
      place.append(make("p", { class: "note" }, `There is no picture of ${hosts.length} hosts; the widest has ${MOST_HOSTS}.`));
      return;
    }
    const drawing = (tag, attributes, ...children) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      element.append(...children);
      return element;
    };
    const picture = drawing("svg", { viewBox: "-270 -250 540 500", class: "topology", role: "img", "aria-label": "topology with loads" });
    const to = (node) => at.get(node).map((value) => 215 * value);
    const most = Math.max(1, loads[order[0]]);
    for (const link of [...order].reverse()) {
      const [[x1, y1], [x2, y2]] = links[link].map(to);
      const length = Math.hypot(x2 - x1, y2 - y1) || 1;
      // Each direction keeps to its own side.
      const [aside, along] = [(-3 * (y2 - y1)) / length, (3 * (x2 - x1)) / length];
      picture.append(drawing("line", { x1: x1 + aside, y1: y1 + along, x2: x2 + aside, y2: y2 + along, "stroke-width": 0.8 + 5 * loads[link] / most,
                                       "stroke-opacity": 0.2 + 0.8 * loads[link] / most }, drawing("title", {}, `${name(link)}: ${told(loads[link], "bytes")}`)));
    }
    for (const [node, place] of at) {
      const [x, y] = place.map((value) => 215 * value);
      const host = node.startsWith("host:");
      picture.append(drawing(host ? "circle" : "rect", host ? { cx: x, cy: y, r: hosts.length > 32 ? 4 : 7 } : { x: x - 5, y: y - 5, width: 10, height: 10 }, drawing("title", {}, node)));
      if (host ? hosts.length <= 64 : at.size - hosts.length <= 12) {
        const far = host ? 1.09 : 1;
        picture.append(drawing("text", { x: far * x, y: far * y + (host ? 4 : -9) }, host ? node.slice(5) : node.slice(0, 24)));
      }
    }
    place.append(picture);
  }

  const policyOf = make("select", { "aria-label": "policy whose messages are shown" });
  const iterationOf = make("select", { "aria-label": "iteration whose messages are shown" });
  const single = make("div");

  function offered() {
    iterationOf.replaceChildren(...Object.keys(data.kept.policies[policyOf.value]).map((number) => make("option", { value: number }, `iteration ${number}`)));
  }

  function drawSingle() {
    single.replaceChildren();
    const one = policyOf.value in data.kept.policies ? data.kept.policies[policyOf.value][iterationOf.value] : null;
    if (!one) return;
    messages(single, one);
    // Of steps of sharded models only spans are kept.
    if (!data.kept.links.length) return;
    single.append(make("h2", {}, "Loads of links"));
    topology(single, one);
  }

  // Charts of the iteration that was shown before are let go.
  function another() {
    for (const chart of others.filter((one) => single.contains(one.root))) {
      others.splice(others.indexOf(chart), 1);
      chart.destroy();
    }
    drawSingle();
  }

  function singles() {
    const names = Object.keys(data.kept.policies);
    if (!names.length) return [];
    policyOf.append(...names.map((name) => make("option", { value: name }, short(name))));
    offered();
    policyOf.addEventListener("change", () => { offered(); another(); });
    iterationOf.addEventListener("change", another);
    return [make("h2", {}, "Messages of an iteration"),
            make("p", { class: "note" }, "Of each policy the first iterations are kept message by message, as many as output.timeline of the scenario says and fit here. timeline.json may have more, for ui.perfetto.dev."),
            make("div", { class: "controls" }, policyOf, iterationOf), single];
  }

  // The page

  const stack = make("div");
  const asides = make("div");
  const table = make("table", {}, make("caption", {}, "The iteration under the cursor, of each policy; bandwidth and latency: the worst between neighbouring workers when it began."),
                     make("thead", {}, make("tr", {}, ...["policy", "iteration", "begins at", "iteration time", "choice", "bandwidth", "latency"]
                       .map((name) => make("th", { scope: "col", ...(["policy", "choice"].includes(name) ? { class: "text" } : {}) }, name)))), make("tbody"));
  table.id = "under";

  function redraw() {
    for (const chart of [...linked.splice(0), ...others.splice(0)]) chart.destroy();
    stack.replaceChildren();
    asides.replaceChildren();
    single.replaceChildren();
    const said = readout(table);
    if (policies().length) {
      const behind = data.policies.find((policy) => policy.name === data.reference);
      const options = { said };
      draw(stack, "iteration time", lines((policy) => ({ y: policy.time, low: policy.low, high: policy.high })), { height: 260, kind: "seconds", log: true, ...options });
      draw(stack, "bandwidth", weather("bandwidth"), { height: 130, kind: "rate", ...options });
      draw(stack, "latency", weather("latency"), { height: 130, kind: "seconds", ...options });
      strips(stack, said);
      if (behind && data.policies.length > 1) {
        draw(stack, `time lost so far against ${short(behind.name)}`, lines((policy) => ({ y: policy.after.map((time, index) =>
          (index < behind.after.length ? time - behind.after[index] : null)) })), { height: 180, kind: "seconds", xLabel: axisName(), ...options });
      }
      if (Object.keys(data.learnt).length) {
        asides.append(make("h2", {}, "Loss and accuracy"));
        learning(asides);
      }
      said(state.range ? state.range[0] : 0);
      drawSingle();
    } else {
      stack.append(make("p", { class: "note" }, "No policy is shown; take one in above."));
    }
    for (const row of document.querySelectorAll("tr[data-policy]")) row.hidden = state.hidden.has(row.dataset.policy);
  }

  function filter(title, names, colours, out) {
    const set = make("fieldset", {}, make("legend", {}, title));
    names.forEach(([key, name], index) => {
      const box = make("input", { type: "checkbox" });
      box.checked = true;
      box.addEventListener("change", () => {
        if (box.checked) out.delete(key);
        else out.add(key);
        redraw();
      });
      set.append(make("label", {}, box, make("i", { class: "swatch", style: { background: colours[index] } }), make("span", {}, name)));
    });
    return set;
  }

  function axes() {
    const both = [["time", "by simulated time"], ["iteration", "by iteration"]].map(([kind, text]) => {
      const one = button(text, () => {
        state.axis = kind;
        state.range = null;
        both.forEach((other) => other.setAttribute("aria-pressed", String(other === one)));
        redraw();
      });
      one.setAttribute("aria-pressed", String(state.axis === kind));
      return one;
    });
    return both;
  }

  function sortable(one) {
    const body = one.tBodies[0];
    [...one.tHead.rows[0].cells].forEach((heading, column) => {
      const press = button("", () => {
        const ascending = heading.getAttribute("aria-sort") !== "ascending";
        for (const other of one.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        const key = (row) => row.cells[column].dataset.key;
        const numeric = [...body.rows].every((row) => key(row) === undefined || (key(row).trim() !== "" && !Number.isNaN(Number(key(row)))));
        const rows = [...body.rows].sort((left, right) => {
          const [a, b] = [key(left), key(right)];
          // What is not known comes last either way.
          if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
          const order = numeric ? Number(a) - Number(b) : a < b ? -1 : Number(a > b);
          return ascending ? order : -order;
        });
        body.append(...rows);
      });
      press.append(...heading.childNodes);
      heading.append(press);
    });
  }

  host.hidden = false;
  host.append(
    make("h2", {}, "The run"),
    make("p", { class: "note" }, "Drag across a chart to look closer, double-click for the whole run; all charts down to the table move together. "
      + "Iteration time is that of training and of what was explored before it."
      + (data.stretch > 1 ? ` Drawn are means over ${data.stretch} iterations, with bands from the least to the greatest, and the choice that was used most in them; iterations.csv has every iteration.` : "")),
    filter("Policies", data.policies.map((policy) => [policy.name, policy.name]), data.policies.map((policy) => policy.colour || "var(--ink)"), state.hidden),
    filter("Schemes", data.choices.map((choice, index) => [index, choice[0]]), data.choices.map((choice) => choice[1]), state.without),
    make("div", { class: "controls" }, ...axes(), button("+", () => zoom(0.5), "closer"), button("−", () => zoom(2), "further"), button("whole run", () => zoomed(whole()))),
    stack, make("div", { class: "scroll" }, table), asides, ...singles(),
  );
  document.querySelectorAll("table.sortable").forEach(sortable);
  const fit = (width) => { for (const chart of [...linked, ...others]) sized(chart, width); };
  themes(redraw, fit);
  redraw();
  fitted(host, fit);
  document.documentElement.dataset.ready = "yes";
})();
