package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"berth"
)

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed assets/*
var assetFiles embed.FS

// page is the data of every template: the frame of the page, and the part of its own.
type page struct {
	Title   string
	Section string
	Path    string // with its query, for forms that come back
	Theme   string // dark or light; "": the browser's
	Version string
	Now     time.Time
	Style   string // address of the style, which changes with its content
	Script  string
	Reader  *reader // nil: no reader is signed in
	Live    bool    // the page has rows that the script may patch
	Data    any
}

// pageOf returns the frame of a page for a request.
func (s *Site) pageOf(r *http.Request, section string) page {
	p := page{Section: section, Version: s.Version, Now: time.Now(), Path: r.URL.RequestURI(),
		Style: assetPath("style.css"), Script: assetPath("script.js")}
	if c, err := r.Cookie(themeCookie); err == nil && (c.Value == "dark" || c.Value == "light") {
		p.Theme = c.Value
	}
	return p
}

// templates holds one set a page: the layout, the shared parts and the page itself.
var templates = parseTemplates()

// parseTemplates parses all templates when the process starts: a template with a fault ends the
// process before it serves a page. With missingkey=error, a misspelt key is an error of the page
// and not an empty text.
func parseTemplates() map[string]*template.Template {
	shared := template.Must(template.New("").Funcs(functions).Option("missingkey=error").
		ParseFS(templateFiles, "templates/layout.html", "templates/parts.html"))
	files, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil {
		panic(err)
	}
	sets := map[string]*template.Template{}
	for _, f := range files {
		name := strings.TrimSuffix(path.Base(f), ".html")
		if name != "layout" && name != "parts" {
			sets[name] = template.Must(template.Must(shared.Clone()).ParseFS(templateFiles, f))
		}
	}
	return sets
}

// render writes a page to a buffer: a template that fails midway must not become half a page.
func render(p page, of result) ([]byte, error) {
	set, ok := templates[of.template]
	if !ok {
		return nil, fmt.Errorf("there is no template %q", of.template)
	}
	p.Title, p.Data = of.title, of.data
	var b bytes.Buffer
	if err := set.ExecuteTemplate(&b, "layout", p); err != nil {
		return nil, fmt.Errorf("render %s: %w", of.template, err)
	}
	return b.Bytes(), nil
}

// show renders a page and sends it.
func (s *Site) show(w http.ResponseWriter, r *http.Request, p page, of result) {
	b, err := render(p, of)
	if err != nil {
		id := incident()
		s.Logger.Error("page cannot be rendered", "path", r.URL.Path, "incident", id, "err", err)
		http.Error(w, "this page cannot be shown; incident "+id, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if of.status != 0 {
		w.WriteHeader(of.status)
	}
	_, _ = w.Write(b) // a browser that is gone needs no page
}

// problemView is the data of the error page.
type problemView struct {
	Status   int
	Message  string
	Fields   []berth.FieldError
	Incident string // "": the error is the reader's to mend
	Advice   string
}

// statusOf is the status of the page for an error.
var statusOf = map[berth.Code]int{
	berth.CodeInvalid: http.StatusUnprocessableEntity, berth.CodeUnauthorized: http.StatusUnauthorized,
	berth.CodeForbidden: http.StatusForbidden, berth.CodeNotFound: http.StatusNotFound,
	berth.CodeConflict: http.StatusConflict, berth.CodeCapacity: http.StatusTooManyRequests,
	berth.CodeUnavailable: http.StatusServiceUnavailable,
}

// showError renders an error inside the frame of the page.
func (s *Site) showError(w http.ResponseWriter, r *http.Request, p page, err error) {
	if p.Style == "" {
		p = s.pageOf(r, "")
	}
	p.Live = false // an error has no rows
	v := problemView{Status: statusOf[berth.CodeOf(err)], Message: sentence(messageOf(err))}
	if e, ok := errors.AsType[*berth.Error](err); ok {
		v.Fields = e.Fields
	}
	switch {
	case errors.Is(r.Context().Err(), context.Canceled): // the visitor has left
		return
	case errors.Is(err, context.DeadlineExceeded):
		v.Status, v.Message = http.StatusServiceUnavailable, "The server did not answer in time."
		v.Advice = "Load the page again in a moment."
	case v.Status == 0:
		v.Status, v.Incident = http.StatusInternalServerError, incident()
		v.Message = "This page cannot be shown."
		s.Logger.Error("page failed", "path", r.URL.Path, "incident", v.Incident, "err", err)
	case v.Status == http.StatusNotFound:
		v.Advice = "It may have been removed, or it belongs to a tenant that your token does not see."
	case v.Status == http.StatusServiceUnavailable || v.Status == http.StatusTooManyRequests:
		v.Advice = "Load the page again in a moment."
	}
	s.show(w, r, p, result{template: "error", title: http.StatusText(v.Status), data: v, status: v.Status})
}

// messageOf returns the message of an error for its reader.
func messageOf(err error) string {
	if e, ok := errors.AsType[*berth.Error](err); ok {
		return e.Message
	}
	return err.Error()
}

// sentence makes a sentence of an error's message.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	if text[0] < utf8.RuneSelf {
		text = strings.ToUpper(text[:1]) + text[1:]
	}
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text
}

// assetSums are the names of the assets with the beginning of the hash of their content, under
// which browsers may keep them without end.
var assetSums = hashAssets()

// hashAssets hashes the assets when the process starts. It panics for a file that cannot be
// read, since all files are part of the program.
func hashAssets() map[string]string {
	sums := map[string]string{}
	files, err := fs.Glob(assetFiles, "assets/*")
	if err != nil {
		panic(err)
	}
	for _, f := range files {
		b, err := assetFiles.ReadFile(f)
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(b)
		sums[path.Base(f)] = hex.EncodeToString(sum[:6])
	}
	return sums
}

// assetPath returns the address of an asset.
func assetPath(name string) string { return "/assets/" + name + "?v=" + assetSums[name] }

// assetTypes are the media types of assets by their ends.
var assetTypes = map[string]string{
	".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// serveAsset serves a style, a script or a picture.
func serveAsset(_ context.Context, v *visit) (result, error) {
	name := v.r.PathValue("name")
	b, err := assetFiles.ReadFile("assets/" + path.Base(name))
	if err != nil {
		return result{}, berth.Errorf(berth.CodeNotFound, "there is no file %q", name)
	}
	h := v.w.Header()
	h.Set("Content-Type", assetTypes[path.Ext(name)])
	if v.query("v") == assetSums[name] {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	_, _ = v.w.Write(b)
	return result{}, errWritten
}
