'use strict';
// The script of the dashboard: patches of rows, times, keys, and logs that are followed. Every page works
// without it. It has no dependencies and writes no HTML of users: patches are the server's own rows.
(() => {
  const $ = (css, of = document) => of.querySelector(css);
  const $$ = (css, of = document) => [...of.querySelectorAll(css)];
  const store = {
    get: (key) => { try { return localStorage.getItem(key); } catch { return null; } },
    set: (key, value) => { try { localStorage.setItem(key, value); } catch { /* private windows have no storage */ } },
  };
  const say = (text) => { const news = $('#news'); if (news) news.textContent = text; };

  // The one place where text becomes HTML: rows that the server has rendered and escaped.
  const policy = window.trustedTypes
    ? window.trustedTypes.createPolicy('berth', { createHTML: (s) => s })
    : { createHTML: (s) => s };
  const parse = (html) => {
    const t = document.createElement('template');
    t.innerHTML = policy.createHTML(html);
    return t.content.firstElementChild;
  };

  // Times: as the server wrote them (UTC), or in the zone of the reader.
  const showTimes = (root = document) => {
    const local = store.get('zone') === 'local';
    for (const t of $$('time:not(.ago)', root)) {
      const at = new Date(t.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const shifted = local ? new Date(at.getTime() - at.getTimezoneOffset() * 60000) : at;
      t.textContent = shifted.toISOString().slice(0, 19).replace('T', ' ') + (local ? '' : ' UTC');
    }
  };
  const span = (s) => {
    const pad = (n) => String(n).padStart(2, '0');
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${pad(s % 60)} s`;
    if (s < 172800) return `${Math.floor(s / 3600)} h ${pad(Math.floor(s / 60) % 60)} min`;
    return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
  };
  const ages = () => {
    for (const t of $$('time.ago')) {
      const s = Math.round((Date.now() - new Date(t.dateTime).getTime()) / 1000);
      if (!Number.isNaN(s)) t.textContent = s >= 0 ? `${span(s)} ago` : `in ${span(-s)}`;
    }
  };

  // Patches. A changed row replaces the old one in its place; a selected row keeps its check mark, and a
  // row with the focus waits until the focus has left.
  let waiting = new Map();
  // The rows as the server sent them, without the texts that change by the clock.
  const plain = (row) => row.outerHTML.replace(/(<time class="ago"[^>]*>)[^<]*/g, '$1');
  const seen = new Map($$('[data-live]').map((row) => [row.dataset.live, plain(row)]));
  const patch = (id, html) => {
    const old = $(`[data-live="${CSS.escape(id)}"]`);
    if (!old) return false;
    if (old.contains(document.activeElement) && document.activeElement !== document.body) {
      waiting.set(id, html);
      return true;
    }
    const fresh = parse(html);
    if (!fresh || fresh.tagName !== old.tagName) return true;
    const text = plain(fresh);
    if (seen.get(id) === text) return true;
    seen.set(id, text);
    const open = $$('details', old).map((d) => d.open);
    const box = $('input[type=checkbox]', old), now = $('input[type=checkbox]', fresh);
    if (box && now) now.checked = box.checked;
    for (const c of ['selected', 'here']) if (old.classList.contains(c)) fresh.classList.add(c);
    $$('details', fresh).forEach((d, i) => { if (i < open.length) d.open = open[i]; });
    old.replaceWith(fresh);
    if (fresh.tagName === 'TR') {
      fresh.classList.add('fresh');
      setTimeout(() => fresh.classList.remove('fresh'), 1500);
    }
    showTimes(fresh);
    return true;
  };
  document.addEventListener('focusout', () => {
    const due = waiting;
    waiting = new Map();
    setTimeout(() => due.forEach((html, id) => patch(id, html)), 0);
  });

  let stream = null, news = 0;
  const follow = () => {
    const page = document.body.dataset.livePage;
    if (!page || stream || document.hidden) return;
    stream = new EventSource('/live?of=' + encodeURIComponent(page));
    stream.addEventListener('rows', (e) => {
      let changed = 0, added = 0;
      for (const [id, html] of Object.entries(JSON.parse(e.data))) if (patch(id, html)) changed++; else added++;
      if (added) { news += added; offer(); }
      if (changed) say(`${changed} updated`);
    });
    stream.addEventListener('bye', () => { stream.close(); stream = null; location.reload(); });
  };
  const pause = () => { if (stream) { stream.close(); stream = null; } };
  // New rows wait behind a link, so that nothing moves under the pointer.
  const offer = () => {
    let link = $('#fresh');
    if (!link) {
      link = document.createElement('a');
      link.id = 'fresh';
      link.className = 'button';
      link.href = document.body.dataset.livePage;
      $('main').prepend(link);
    }
    link.textContent = `${news} new: show`;
    say(`${news} new`);
  };
  document.addEventListener('visibilitychange', () => (document.hidden ? pause() : follow()));
  window.addEventListener('pagehide', pause);

  // A log that may grow is read again from its end, and the new lines are appended as text.
  const logBox = $('[data-log]');
  let tailing = false;
  const most = 3000;
  const tail = () => {
    if (!logBox || !logBox.hasAttribute('data-follow')) return;
    const list = $('ol', logBox);
    const follower = new EventSource(logBox.dataset.follow);
    let held = [];
    follower.addEventListener('lines', (e) => held.push(...JSON.parse(e.data)));
    follower.addEventListener('end', () => { follower.close(); say('the log has ended'); });
    follower.addEventListener('bye', () => { follower.close(); location.reload(); });
    const flush = () => {
      if (held.length) {
        const lines = held.slice(-most);
        held = [];
        const bottom = logBox.scrollHeight - logBox.scrollTop - logBox.clientHeight < 40;
        const part = document.createDocumentFragment();
        for (const html of lines) { const li = parse(html); if (li) part.append(li); }
        list.append(part);
        const none = $('.empty');
        if (none) none.remove();
        while (list.children.length > most) list.firstElementChild.remove();
        if (tailing || bottom) logBox.scrollTop = logBox.scrollHeight;
      }
    };
    const timer = setInterval(flush, 250);
    window.addEventListener('pagehide', () => { clearInterval(timer); follower.close(); });
  };
  if (logBox && !location.hash) logBox.scrollTop = logBox.scrollHeight;

  // Keys. None fires in a field, and all can be switched off (WCAG 2.1.4).
  const keys = {
    '?': ['list the keys', () => help()],
    '/': ['search', () => { const q = $('#q') || $('#grep'); if (q) q.focus(); else location.href = '/jobs'; }],
    j: ['next row', () => move(1)], k: ['previous row', () => move(-1)],
    x: ['select the row', () => { const b = $('tr.here input[type=checkbox]'); if (b) { b.checked = !b.checked; mark(b); } }],
    Enter: ['open the row', () => { const a = $('tr.here td.job a'); if (a) a.click(); }],
    e: ['explain', () => tab('explain')], l: ['log', () => tab('log')],
    f: ['follow the log', () => { tailing = !tailing; say(tailing ? 'following' : 'not following'); }],
    '[': ['earlier attempt', () => attempt(-1)], ']': ['later attempt', () => attempt(1)],
    '.': ['first action', () => { const b = $('.acts button'); if (b) b.focus(); }],
    t: ['local time or UTC', () => { store.set('zone', store.get('zone') === 'local' ? 'utc' : 'local'); showTimes(); }],
    y: ['copy the link', () => copy(location.href)],
    Y: ['copy the command', () => { const c = $('.cli code'); if (c) copy(c.textContent); }],
  };
  const places = { o: '/', q: '/queue', j: '/jobs', m: '/machines', s: '/schedules', t: '/tenants', c: '/usage', u: '/submit' };
  const rows = () => $$('table.rows tbody tr');
  const move = (by) => {
    const all = rows(), at = all.findIndex((r) => r.classList.contains('here'));
    const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
    if (!next) return;
    for (const r of all) r.classList.remove('here');
    next.classList.add('here');
    next.scrollIntoView({ block: 'nearest' });
    const link = $('td.job a, td a', next);
    if (link) say(link.textContent);
  };
  const mark = (box) => { const row = box.closest('tr'); if (row) row.classList.toggle('selected', box.checked); };
  const tab = (name) => {
    const row = $('tr.here td.job a');
    const base = row ? row.href : (/^\/jobs\/[^/]+/.exec(location.pathname) || [null])[0];
    if (base) location.href = base + '?tab=' + name;
  };
  const attempt = (by) => {
    const links = $$('nav.chips a[href*="attempt="]'), at = links.findIndex((a) => a.getAttribute('aria-current'));
    const next = links[at + by];
    if (at >= 0 && next) next.click();
  };
  const copy = (text) => navigator.clipboard && navigator.clipboard.writeText(text).then(() => say('copied'), () => say('not copied'));
  const help = () => {
    let d = $('#keys');
    if (!d) {
      d = document.createElement('dialog');
      d.id = 'keys';
      d.setAttribute('aria-label', 'Keys');
      const list = document.createElement('dl');
      list.className = 'facts';
      const line = (key, text) => {
        const dt = document.createElement('dt'), dd = document.createElement('dd'), kbd = document.createElement('kbd');
        kbd.textContent = key;
        dt.append(kbd);
        dd.textContent = text;
        list.append(dt, dd);
      };
      for (const [key, [text]] of Object.entries(keys)) line(key, text);
      for (const [key, path] of Object.entries(places)) line('g ' + key, 'go to ' + path);
      const off = document.createElement('button'), close = document.createElement('button');
      off.textContent = store.get('keys') === 'off' ? 'Switch keys on' : 'Switch keys off';
      off.addEventListener('click', () => { store.set('keys', store.get('keys') === 'off' ? 'on' : 'off'); d.close(); d.remove(); });
      close.textContent = 'Close';
      close.addEventListener('click', () => d.close());
      d.append(list, off, ' ', close);
      document.body.append(d);
    }
    d.showModal();
  };
  let going = 0;
  document.addEventListener('keydown', (e) => {
    // The focus leaves a closed dialog only at the next frame.
    const typing = e.target.closest('input:not([type=checkbox]), textarea, select, dialog[open], [contenteditable]');
    if (typing || e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === 'Enter' && e.target !== document.body) return; // of links and buttons
    if (store.get('keys') === 'off' && e.key !== '?') return;
    if (going && Date.now() - going < 1500 && places[e.key]) { e.preventDefault(); location.href = places[e.key]; return; }
    going = e.key === 'g' ? Date.now() : 0;
    if (keys[e.key]) { e.preventDefault(); keys[e.key][1](); }
  });
  document.addEventListener('change', (e) => { if (e.target.matches('td.pick input')) mark(e.target); });

  // Cells of a heat map lead to their elements.
  document.addEventListener('click', (e) => {
    const svg = e.target.closest('svg[data-heat]');
    if (!svg) return;
    const p = new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const column = Math.floor(p.x / 14), row = Math.floor(p.y / 14);
    if (column < 0 || column >= 50) return;
    location.href = location.pathname + '/elements/' + (Number(svg.dataset.heat) + row * 50 + column);
  });

  showTimes();
  setInterval(ages, 5000);
  follow();
  tail();
})();
