package svgplot_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"berth/internal/lib/svgplot"
	"berth/wire"
)

// elements reads the picture as XML and counts its elements; texts are its texts.
func elements(t *testing.T, svg []byte) (count map[string]int, texts string) {
	t.Helper()
	count = map[string]int{}
	var said strings.Builder
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		switch x := token.(type) {
		case xml.StartElement:
			count[x.Name.Local]++
		case xml.CharData:
			said.Write(x)
			said.WriteByte('\n')
		}
		if errors.Is(err, io.EOF) {
			return count, said.String()
		}
		if err != nil {
			t.Fatalf("no XML: %v\n%s", err, svg)
		}
	}
}

func TestStrangersTextStaysText(t *testing.T) {
	t.Parallel()
	const evil = `</text><script>alert("1")</script>&'` + "\x00\x1b[31m\ufffe"
	c := svgplot.Chart{Title: evil, Panels: []svgplot.Panel{{Title: evil, Unit: evil, Lines: []svgplot.Line{{Label: evil, Step: time.Second, Values: []float64{1}}}}}}
	count, texts := elements(t, c.SVG())
	if count["script"] > 0 || count["path"] != 1 {
		t.Errorf("elements are %v", count)
	}
	if !strings.Contains(texts, `<script>alert("1")`) || strings.ContainsAny(texts, "\x00\x1b") {
		t.Errorf("it says %q", texts)
	}
	if count, texts := elements(t, svgplot.Chart{Title: "a", Empty: "nothing <measured>"}.SVG()); count["path"] > 0 || !strings.Contains(texts, "nothing <measured>") {
		t.Errorf("a chart of nothing: %v, %q", count, texts)
	}
}

func TestGapsEndLinesAndLonelyValuesAreDots(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	c := svgplot.Chart{Panels: []svgplot.Panel{{Unit: wire.UnitRatio, Lines: []svgplot.Line{
		{Step: time.Second, Values: []float64{0, 1, nan, 0.5, nan, nan, 7, math.Inf(1)}},
		{Step: time.Second, Start: time.Time{}.Add(time.Second), Values: []float64{nan, nan}},
	}}}}
	svg := string(c.SVG())
	_, after, _ := strings.Cut(svg, ` d="`)
	path, _, _ := strings.Cut(after, `"`)
	if moves, joins := strings.Count(path, "M"), strings.Count(path, "L"); moves != 3 || joins != 2 {
		t.Errorf("path %q has %d pieces and %d joins, want 3 and 2", path, moves, joins)
	}
	if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Errorf("what is no number is drawn: %s", svg)
	}
	elements(t, []byte(svg))
}

func TestAxesAreRound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		most float64
		unit string
		want string
	}{
		{0, wire.UnitCores, ">1<"}, {0.3, wire.UnitCores, ">0.4<"}, {7.2, wire.UnitCores, ">10<"}, {64, wire.UnitCores, ">100<"},
		{0.2, wire.UnitRatio, ">100 %<"}, {3 << 30, wire.UnitBytes, ">4.0 GiB<"}, {700 << 20, wire.UnitBytesPerSecond, ">1000.0 MiB/s<"}, {40, wire.UnitBytes, ">40 bytes<"},
	} {
		svg := string(svgplot.Chart{Panels: []svgplot.Panel{{Unit: c.unit, Lines: []svgplot.Line{{Step: time.Second, Values: []float64{c.most}}}}}}.SVG())
		if !strings.Contains(svg, c.want) {
			t.Errorf("an axis up to %v %s has no mark %s", c.most, c.unit, c.want)
		}
	}
}
