package svgplot_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

// marks returns the texts of the picture that begin with a prefix.
func marks(t *testing.T, c svgplot.Chart, prefix string) []string {
	t.Helper()
	_, texts := elements(t, c.SVG())
	var found []string
	for line := range strings.Lines(texts) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, prefix) {
			found = append(found, line)
		}
	}
	return found
}

func TestMarksOfTheTimeAxisAreRoundAndDistinct(t *testing.T) {
	t.Parallel()
	for span, want := range map[time.Duration][]string{
		time.Second:      {"+0s", "+200ms", "+400ms", "+600ms", "+800ms", "+1s"},
		3 * time.Second:  {"+0s", "+500ms", "+1s", "+1.5s", "+2s", "+2.5s", "+3s"},
		90 * time.Second: {"+0s", "+15s", "+30s", "+45s", "+1m", "+1m15s", "+1m30s"},
		5 * time.Hour:    {"+0s", "+1h", "+2h", "+3h", "+4h", "+5h"},
	} {
		c := svgplot.Chart{Panels: []svgplot.Panel{{Unit: wire.UnitCores,
			Lines: []svgplot.Line{{Step: span, Values: []float64{1}}}}}}
		if diff := cmp.Diff(want, marks(t, c, "+")); diff != "" {
			t.Errorf("marks of %s (-want +got):\n%s", span, diff)
		}
	}
	for days := range 400 {
		span := time.Duration(days+1) * 24 * time.Hour
		c := svgplot.Chart{Panels: []svgplot.Panel{{Unit: wire.UnitCores,
			Lines: []svgplot.Line{{Step: span, Values: []float64{1}}}}}}
		got := marks(t, c, "+")
		if len(got) > 8 || len(got) < 2 || len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Errorf("marks of %d days: %v", days+1, got)
		}
	}
}

func TestLimitIsALineWhereTheScaleHoldsIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit  float64
		lines  int // dashed
		labels []string
	}{
		{0, 0, nil},
		{2, 1, []string{"limit 2"}},
		{3, 1, []string{"limit 3"}}, // above the values
		{64, 0, []string{"limit 64"}},
	} {
		chart := svgplot.Chart{Panels: []svgplot.Panel{{Unit: wire.UnitCores, Limit: c.limit,
			Lines: []svgplot.Line{{Step: time.Second, Values: []float64{1, 2}}}}}}
		if n := bytes.Count(chart.SVG(), []byte(`class="limit"`)); n != c.lines {
			t.Errorf("limit %v has %d lines, want %d", c.limit, n, c.lines)
		}
		if diff := cmp.Diff(c.labels, marks(t, chart, "limit")); diff != "" {
			t.Errorf("labels of limit %v (-want +got):\n%s", c.limit, diff)
		}
	}
}

func TestLabelsOfAScaleAreDistinct(t *testing.T) {
	t.Parallel()
	for _, p := range []svgplot.Panel{
		{Unit: wire.UnitBytes, Lines: []svgplot.Line{{Step: time.Second, Values: []float64{1}}}},
		{Unit: wire.UnitBytesPerSecond, Lines: []svgplot.Line{{Step: time.Second, Values: []float64{0}}}},
		{Unit: wire.UnitCores, Lines: []svgplot.Line{{Step: time.Second, Values: []float64{0.003}}}},
		{Lines: []svgplot.Line{{Step: time.Second, Values: []float64{0.91, 0.95}}}},
		{Lines: []svgplot.Line{{Step: time.Second, Values: []float64{-3, 2.5}}}},
		{Lines: []svgplot.Line{{Step: time.Second, Values: []float64{1e6, 1e6 + 1}}}},
		{Lines: []svgplot.Line{{Step: time.Second, Values: []float64{7, 7}}}},
		{Lines: []svgplot.Line{{Step: time.Second, Values: []float64{math.NaN()}}}},
	} {
		svg := svgplot.Chart{Panels: []svgplot.Panel{p}}.SVG()
		seen := map[string]bool{}
		for _, m := range regexp.MustCompile(`text-anchor="end">([^<]*)</text>`).FindAllSubmatch(svg, -1) {
			if label := string(m[1]); !strings.HasPrefix(label, "+") && !strings.HasSuffix(label, "Z") {
				if seen[label] {
					t.Errorf("two labels %q for %+v", label, p)
				}
				seen[label] = true
			}
		}
		if len(seen) < 1 {
			t.Errorf("no labels for %+v", p)
		}
		if bytes.Contains(svg, []byte("NaN")) || bytes.Contains(svg, []byte("Inf")) {
			t.Errorf("the picture of %+v has NaN or Inf:\n%s", p, svg)
		}
	}
}

// A job may report any number as its own value, and a picture must end all the same.
func TestExtremeValuesHaveAScale(t *testing.T) {
	t.Parallel()
	for _, values := range [][]float64{
		{-math.MaxFloat64, math.MaxFloat64},
		{math.MaxFloat64, math.MaxFloat64 / 2},
		{0, math.SmallestNonzeroFloat64},
		{1e300, math.Nextafter(1e300, math.Inf(1))},
		{-1e-310, 1e-310},
		{math.Inf(-1), 0, math.Inf(1)},
		{1, math.Nextafter(1, 2)},
	} {
		p := svgplot.Panel{Lines: []svgplot.Line{{Step: time.Second, Values: values}}}
		svg := svgplot.Chart{Panels: []svgplot.Panel{p}}.SVG()
		if bytes.Contains(svg, []byte("NaN")) || bytes.Contains(svg, []byte("Inf")) {
			t.Errorf("the picture of %v has NaN or Inf:\n%s", values, svg)
		}
	}
}
