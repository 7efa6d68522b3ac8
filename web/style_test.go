package web_test

import (
	"math"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// Text needs a contrast of 4.5 to its ground, and marks without text 3 (WCAG 2.1, 1.4.3 and 1.4.11).
func TestColorsHaveContrast(t *testing.T) {
	t.Parallel()
	css, err := os.ReadFile("assets/style.css")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile(`:root[^{]*\{[^}]*\}`)
	token := regexp.MustCompile(`--([a-z-]+): (#[0-9a-f]{6})`)
	var themes []map[string]string
	for _, b := range block.FindAllString(string(css), -1) {
		colors := map[string]string{}
		for _, m := range token.FindAllStringSubmatch(b, -1) {
			colors[m[1]] = m[2]
		}
		if len(colors) > 0 {
			themes = append(themes, colors)
		}
	}
	if len(themes) != 3 {
		t.Fatalf("%d themes; want light, dark by the browser, dark by choice", len(themes))
	}
	for name, color := range themes[1] {
		if themes[2][name] != color {
			t.Errorf("--%s differs between the two dark themes", name)
		}
	}
	for i, colors := range themes {
		need := func(front, back string, least float64) {
			if got := contrast(t, colors[front], colors[back]); got < least {
				t.Errorf("theme %d: %s on %s has a contrast of %.2f, less than %.1f", i, front, back, got, least)
			}
		}
		for _, text := range []string{"fg", "dim", "link", "good", "bad", "wait", "prep", "run", "off"} {
			need(text, "bg", 4.5)
			need(text, "panel", 4.5)
		}
		for _, ground := range []string{"tint-bad", "tint-good", "tint-wait"} {
			for _, text := range []string{"fg", "dim", "link"} {
				need(text, ground, 4.5)
			}
		}
		need("on-main", "main", 4.5)
		for _, edge := range []string{"edge", "focus"} {
			need(edge, "bg", 3)
			need(edge, "panel", 3)
		}
	}
}

// contrast is the ratio of two colors by WCAG.
func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	x, y := luminance(t, a), luminance(t, b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

func luminance(t *testing.T, color string) float64 {
	t.Helper()
	n, err := strconv.ParseUint(color[1:], 16, 32)
	if err != nil {
		t.Fatal(err)
	}
	part := func(shift int) float64 {
		c := float64(n>>shift&0xff) / 255
		if c <= 0.04045 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return 0.2126*part(16) + 0.7152*part(8) + 0.0722*part(0)
}

func TestTheScriptIsSmall(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("assets/script.js")
	if err != nil {
		t.Fatal(err)
	}
	if len(script) > 30<<10 {
		t.Errorf("the script has %d bytes", len(script))
	}
	if m := regexp.MustCompile(`https?://|\beval\b|document\.write|insertAdjacentHTML`).Find(script); m != nil {
		t.Errorf("the script has %q", m)
	}
	if n := len(regexp.MustCompile(`innerHTML`).FindAll(script, -1)); n != 1 {
		t.Errorf("the script writes HTML at %d places", n)
	}
}
