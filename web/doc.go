// Package web serves the dashboard: pages of HTML about jobs, the queue and machines, and forms
// that act on them.
//
// The pages show documents of the public API and nothing else. Each request becomes calls of
// api/client over a transport inside the process. The calls have the rights of the browser's session,
// so permissions, limits and the 404 of another tenant's job are the API's own
// (docs/adr/0059-pages-are-calls-of-the-api.md). This package itself reads and writes rows of
// web_sessions only.
//
// The one rule to know: a page works without JavaScript. Every filter, tab and page is part of the
// address, every action is a form, and a state changes by POST only. The script adds patches of
// rows, keys and followed logs.
//
// Files by noun: site and routes serve, visit is one request, session and signin know the reader,
// view and render turn documents into HTML. The other files hold the pages. Templates are in
// templates/, one file a page; style and script in assets/.
package web
