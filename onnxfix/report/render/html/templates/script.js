"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);

  // The theme: the system's, unless another was chosen. Pages from a disk may have no storage.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const store = {
    get: () => { try { return localStorage.getItem("onnxfix-theme"); } catch { return null; } },
    set: (theme) => { try { localStorage.setItem("onnxfix-theme", theme); } catch { /* only for this page, then */ } },
  };
  const shown = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const setTheme = (theme) => {
    root.dataset.theme = theme;
    byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  };
  const saved = store.get();
  if (saved === "light" || saved === "dark") root.dataset.theme = saved;
  byId("theme").textContent = shown() === "dark" ? "Light" : "Dark";
  const toggleTheme = () => {
    setTheme(shown() === "dark" ? "light" : "dark");
    store.set(root.dataset.theme);
  };

  // The sections of a page about one model, in the bar.
  const sections = all("main section.card[id]");
  if (document.querySelectorAll("main article").length < 2) {
    for (const section of sections) {
      const link = document.createElement("a");
      link.href = "#" + section.id;
      link.textContent = section.querySelector("h2 a").textContent;
      byId("sections").append(link);
    }
  }
  // What a link leads to is unfolded.
  const unfold = (target) => {
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    const folded = target && target.querySelector(":scope > details.several");
    if (folded) folded.open = true;
  };
  const followHash = () => unfold(location.hash ? byId(decodeURIComponent(location.hash.slice(1))) : null);
  addEventListener("hashchange", followHash);
  followHash();

  // Expanding everything opens the rules, not the thousand findings in them; the next press collapses.
  const foldable = () => all("details.group, details.several, details.feeds");
  const expand = () => {
    const every = foldable();
    const open = every.some((one) => !one.open);
    for (const one of every) one.open = open;
    byId("expand").textContent = open ? "Collapse" : "Expand";
  };

  // Search and severities.
  for (const filters of all(".filters")) {
    filters.hidden = false;
    const section = filters.closest("section");
    const groups = all(".group", section).map((group) => ({
      group,
      was: group.open,
      severity: group.dataset.severity,
      head: group.querySelector("summary").textContent.toLowerCase(),
      items: all(".finding", group).map((item) => ({
        item,
        words: item.querySelector("summary").textContent.toLowerCase(),
      })),
    }));
    const search = filters.querySelector("[data-search]");
    const boxes = all("[data-filter]", filters);
    const output = filters.querySelector("[data-count]");
    const apply = () => {
      const words = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
      const off = new Set(boxes.filter((box) => !box.checked).map((box) => box.value));
      let count = 0;
      for (const { group, was, severity, head, items } of groups) {
        let here = 0;
        for (const { item, words: text } of items) {
          const hit = !off.has(severity) && words.every((word) => text.includes(word) || head.includes(word));
          item.hidden = !hit;
          here += hit;
        }
        group.hidden = !here;
        group.open = words.length ? here > 0 : was;
        count += here;
      }
      output.textContent = words.length || off.size ? `${count.toLocaleString("en")} shown` : "";
    };
    search.addEventListener("input", apply);
    for (const box of boxes) box.addEventListener("change", apply);
  }

  // Moving from finding to finding, and from section to section.
  const visible = (one) => one.checkVisibility();
  const step = (items, by) => {
    const at = document.activeElement;
    let index = items.indexOf(at);
    if (index < 0) {
      const after = items.findIndex((one) => at && at.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING);
      index = after < 0 ? (by > 0 ? -1 : items.length) : by > 0 ? after - 1 : after;
    }
    const next = items[Math.min(Math.max(index + by, 0), items.length - 1)];
    if (!next) return;
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  };
  const findings = () => all(".group > summary, .group[open] > .finding > summary").filter(visible);
  const headings = () => all("main section.card[id] > h2 > a, main details.several > summary").filter(visible);

  const keys = byId("keys");
  byId("close").addEventListener("click", () => keys.close());
  const actions = {
    j: () => step(findings(), 1),
    k: () => step(findings(), -1),
    "]": () => step(headings(), 1),
    "[": () => step(headings(), -1),
    e: expand,
    t: toggleTheme,
    "?": () => keys.showModal(),
    "/": () => {
      const search = all("[data-search]").find(visible);
      if (search) search.focus();
    },
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
    const typing = event.target.matches("input[type=search]");
    if (typing && event.key === "Escape") event.target.blur();
    if (typing || !Object.hasOwn(actions, event.key)) return;
    event.preventDefault();
    actions[event.key]();
  });
  byId("expand").addEventListener("click", expand);
  byId("theme").addEventListener("click", toggleTheme);
  byId("help").addEventListener("click", actions["?"]);
  document.querySelector(".buttons").hidden = false;

  // On paper every rule is unfolded, and afterwards folded as it was.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = foldable().filter((one) => !one.open);
    for (const one of folded) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of folded) one.open = false;
  });
})();
