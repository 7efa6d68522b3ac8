package web_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
)

var screenshots = flag.String("screenshots", "", "folder for pictures of the pages that the browser test visits")

// chromium is a page in a headless browser, driven by the DevTools protocol over its websocket. The
// protocol needs a few calls only, so that the test has no dependency of its own.
type chromium struct {
	t       *testing.T
	ctx     context.Context
	ws      *websocket.Conn
	session string

	mu      sync.Mutex
	last    int
	answers map[int]chan cdpMessage
	loads   chan string // the loaders of the documents that are loaded
	faults  []string    // errors of the console, of policies and of scripts
	hosts   map[string]bool
}

type cdpMessage struct {
	ID        int             `json:"id,omitempty"`
	Session   string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Exception *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// startChromium starts a browser, or skips the test where none is installed.
func startChromium(t *testing.T) *chromium {
	t.Helper()
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("no chromium is installed: apt-get install chromium")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	dir, err := os.MkdirTemp("", "chromium")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
		"--user-data-dir="+dir, "--remote-debugging-port=0", "about:blank")
	// The browser is a group of processes. The first is not the last that writes to the folder.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	t.Cleanup(func() {
		var err error
		for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if err = os.RemoveAll(dir); err == nil {
				return
			}
		}
		t.Errorf("the folder of the browser: %v", err)
	})
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	var address string
	lines := bufio.NewScanner(errs)
	for address == "" && lines.Scan() {
		_, address, _ = strings.Cut(lines.Text(), "DevTools listening on ")
	}
	if address == "" {
		t.Fatal("the browser did not start")
	}
	go func() { // until the browser ends
		for lines.Scan() {
			continue
		}
	}()
	ws, _, err := websocket.Dial(ctx, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(64 << 20)
	c := &chromium{t: t, ctx: ctx, ws: ws, answers: map[int]chan cdpMessage{}, loads: make(chan string, 100), hosts: map[string]bool{}}
	go c.read()
	t.Cleanup(func() { _ = ws.CloseNow() })
	var target struct {
		ID string `json:"targetId"`
	}
	c.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct {
		ID string `json:"sessionId"`
	}
	c.call("Target.attachToTarget", map[string]any{"targetId": target.ID, "flatten": true}, &attached)
	c.session = attached.ID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network", "Accessibility"} {
		c.call(domain+".enable", nil, nil)
	}
	c.call("Page.setLifecycleEventsEnabled", map[string]any{"enabled": true}, nil)
	return c
}

// read distributes messages until the connection ends.
func (c *chromium) read() {
	for {
		_, b, err := c.ws.Read(c.ctx)
		if err != nil {
			return
		}
		var m cdpMessage
		if json.Unmarshal(b, &m) != nil {
			continue
		}
		c.mu.Lock()
		if m.ID > 0 {
			if to := c.answers[m.ID]; to != nil {
				to <- m
			}
			delete(c.answers, m.ID)
		} else {
			c.note(m)
		}
		c.mu.Unlock()
	}
}

// note records an event. The caller holds c.mu.
func (c *chromium) note(m cdpMessage) {
	switch m.Method {
	case "Page.lifecycleEvent":
		var p struct {
			Loader string `json:"loaderId"`
			Name   string `json:"name"`
		}
		_ = json.Unmarshal(m.Params, &p)
		if p.Name == "load" {
			c.loads <- p.Loader
		}
	case "Runtime.exceptionThrown":
		c.faults = append(c.faults, string(m.Params))
	case "Log.entryAdded":
		var p struct {
			Entry struct{ Level, Source, Text, URL string }
		}
		_ = json.Unmarshal(m.Params, &p)
		if p.Entry.Level == "error" {
			c.faults = append(c.faults, p.Entry.Source+": "+p.Entry.Text+" "+p.Entry.URL)
		}
	case "Network.requestWillBeSent":
		var p struct {
			Request struct{ URL string }
		}
		_ = json.Unmarshal(m.Params, &p)
		if u, err := url.Parse(p.Request.URL); err == nil && u.Scheme != "data" {
			c.hosts[u.Host] = true
		}
	}
}

// call makes a call of the protocol.
func (c *chromium) call(method string, params, out any) {
	c.t.Helper()
	if err := c.try(method, params, out); err != nil {
		c.t.Fatalf("%s: %v", method, err)
	}
}

// try is call for a call that may fail, such as one in a page that is just being left.
func (c *chromium) try(method string, params, out any) error {
	if params == nil {
		params = map[string]any{}
	}
	c.mu.Lock()
	c.last++
	id, answer := c.last, make(chan cdpMessage, 1)
	c.answers[id] = answer
	c.mu.Unlock()
	b, err := json.Marshal(map[string]any{"id": id, "method": method, "params": params, "sessionId": c.session})
	if c.session == "" {
		b, err = json.Marshal(map[string]any{"id": id, "method": method, "params": params})
	}
	if err == nil {
		err = c.ws.Write(c.ctx, websocket.MessageText, b)
	}
	if err != nil {
		return err
	}
	select {
	case m := <-answer:
		if m.Exception != nil {
			return errors.New(m.Exception.Message)
		}
		if out == nil {
			return nil
		}
		return json.Unmarshal(m.Result, out)
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
}

// open goes to a page and waits until it is loaded. The page before may load as late as this one begins, so
// that a load counts only if it is of the document that this call asked for.
func (c *chromium) open(address string) {
	c.t.Helper()
	for len(c.loads) > 0 {
		<-c.loads
	}
	var asked struct {
		Loader string `json:"loaderId"`
		Fault  string `json:"errorText"`
	}
	c.call("Page.navigate", map[string]any{"url": address}, &asked)
	if asked.Loader == "" || asked.Fault != "" {
		c.t.Fatalf("%s opens no document: %s", address, asked.Fault)
	}
	for {
		select {
		case loader := <-c.loads:
			if loader == asked.Loader {
				return
			}
		case <-c.ctx.Done():
			c.t.Fatalf("%s is not loaded: %v", address, c.ctx.Err())
		}
	}
}

// eval evaluates an expression, and the promise that it may be.
func (c *chromium) eval(expression string) any {
	c.t.Helper()
	var out struct {
		Result struct {
			Value any `json:"value"`
		} `json:"result"`
		Exception json.RawMessage `json:"exceptionDetails"`
	}
	c.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &out)
	if out.Exception != nil {
		c.t.Fatalf("%s: %s", expression, out.Exception)
	}
	return out.Result.Value
}

// await waits until an expression is true.
func (c *chromium) await(expression string) {
	c.t.Helper()
	var out struct {
		Result struct {
			Value any `json:"value"`
		} `json:"result"`
	}
	for end := time.Now().Add(90 * time.Second); c.ctx.Err() == nil && time.Now().Before(end); {
		err := c.try("Runtime.evaluate", map[string]any{"expression": fmt.Sprintf(
			"new Promise(done => { let n = 0; const look = () => { if (%s) done(true); else if (++n > 50) done(false); "+
				"else setTimeout(look, 20); }; look(); })", expression), "awaitPromise": true, "returnByValue": true}, &out)
		if err == nil && isTrue(out.Result.Value) {
			return
		}
	}
	_ = c.try("Runtime.evaluate", map[string]any{"expression": `location.href + " " + document.readyState + " " +
		document.activeElement.outerHTML.slice(0, 200) + " " + (document.querySelector(".here") || {}).outerHTML`, "returnByValue": true}, &out)
	c.t.Fatalf("never true: %s, but: %v", expression, out.Result.Value)
}

// key presses a key.
func (c *chromium) key(key string) {
	c.t.Helper()
	down := map[string]any{"type": "keyDown", "key": key, "text": key}
	switch key {
	case "Enter":
		down["text"], down["windowsVirtualKeyCode"] = "\r", 13
	case "Tab", "Escape":
		delete(down, "text")
		down["windowsVirtualKeyCode"] = map[string]int{"Tab": 9, "Escape": 27}[key]
	}
	c.call("Input.dispatchKeyEvent", down, nil)
	c.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key}, nil)
}

// size sets the size of the window.
func (c *chromium) size(width, height int) {
	c.t.Helper()
	c.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1,
		"mobile": false}, nil)
}

// dark sets the theme that the browser prefers.
func (c *chromium) dark(on bool) {
	c.t.Helper()
	value := "light"
	if on {
		value = "dark"
	}
	c.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{
		map[string]any{"name": "prefers-color-scheme", "value": value}}}, nil)
}

// picture stores a picture of the page, if the test was asked for pictures.
func (c *chromium) picture(name string) {
	c.t.Helper()
	if *screenshots == "" {
		return
	}
	var out struct{ Data string }
	c.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &out)
	b, err := base64.StdEncoding.DecodeString(out.Data)
	if err == nil {
		err = os.WriteFile(filepath.Join(*screenshots, name+".png"), b, 0o644)
	}
	if err != nil {
		c.t.Error(err)
	}
}

// unnamed returns the elements of the page that a reader can use, but that have no name for those who
// hear the page.
func (c *chromium) unnamed() (list []string) {
	c.t.Helper()
	var tree struct {
		Nodes []struct {
			Ignored bool
			Role    struct{ Value any }
			Name    struct{ Value any }
		}
	}
	c.call("Accessibility.getFullAXTree", nil, &tree)
	for _, n := range tree.Nodes {
		switch role := fmt.Sprint(n.Role.Value); role {
		case "button", "link", "textbox", "checkbox", "img", "region", "progressbar", "combobox", "navigation":
			if !n.Ignored && (n.Name.Value == nil || n.Name.Value == "") && role != "progressbar" {
				list = append(list, role)
			}
		}
	}
	return list
}

// forget drops the faults so far: an answer of 401 or 404 is one for the console. The caller holds c.mu.
func (c *chromium) forget() { c.faults = nil }

// clean fails the test for each fault since the last call, and for requests to other hosts.
func (c *chromium) clean(where, host string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.faults {
		c.t.Errorf("%s: %s", where, f)
	}
	c.forget()
	for h := range c.hosts {
		if h != host && h != "" {
			c.t.Errorf("%s: a request to %s", where, h)
		}
	}
}

// isTrue reports whether a script returned true.
func isTrue(value any) bool {
	b, ok := value.(bool)
	return ok && b
}
