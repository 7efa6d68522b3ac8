package spec

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// MiB is an amount of memory or disk in mebibytes, the unit of every capacity
// in Berth. Its form in JSON and YAML is 4GiB, 512MiB or a number of bytes;
// fractions of a MiB are rounded up, so a request is never granted less.
type MiB int64

// MilliCPU is an amount of CPU in thousandths of a core. Its form in JSON and YAML is a
// decimal number of cores; fractions of a thousandth are rounded up.
type MilliCPU int64

// MilliGPU is an amount of GPU in thousandths of a device. Its form in JSON and YAML is a
// whole number of devices, or a share of one device such as 0.25.
type MilliGPU int64

// Duration is a time.Duration. Its form in JSON and YAML is Go's, such as 90s, 4h or
// 1h30m; a bare number is refused, since it has no unit.
type Duration time.Duration

// maxMiB keeps sums over a cluster far from overflow (1 EiB).
const maxMiB = 1 << 40

// byteUnits lists the units of ParseMiB. The first suffix that matches counts, so B comes
// after all units that end in B.
var byteUnits = []struct {
	suffix string
	bytes  float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
}

// ParseMiB parses 4GiB, 512MiB, 1.5GiB, 2GB or a plain number of bytes, and rounds up to
// whole MiB. The amount lies between 0 and 1 EiB.
func ParseMiB(s string) (MiB, error) {
	text, unit := strings.TrimSpace(s), 1.0
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(text, u.suffix); ok {
			text, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) || strings.ContainsAny(text, "xXpP_") {
		return 0, fmt.Errorf("%q is not an amount: write 4GiB, 512MiB or a number of bytes", s)
	}
	m := math.Ceil(n * unit / (1 << 20))
	if m < 0 || m > maxMiB {
		return 0, fmt.Errorf("%q is out of range: allowed are 0 to 1EiB", s)
	}
	return MiB(m), nil
}

// String renders the amount in the largest of TiB, GiB and MiB that divides it, so that
// ParseMiB returns the same amount.
func (m MiB) String() string {
	switch {
	case m != 0 && m%(1<<20) == 0:
		return fmt.Sprintf("%dTiB", m>>20)
	case m != 0 && m%(1<<10) == 0:
		return fmt.Sprintf("%dGiB", m>>10)
	default:
		return fmt.Sprintf("%dMiB", int64(m))
	}
}

func (m MiB) MarshalJSON() ([]byte, error) { return json.Marshal(m.String()) }

func (m *MiB) UnmarshalJSON(b []byte) error {
	v, err := ParseMiB(unquote(b))
	if err != nil {
		return err
	}
	*m = v
	return nil
}

// parseMilli parses a decimal number into thousandths, rounded up. It first rounds to
// millionths, so that an error of floating point does not add a thousandth.
func parseMilli(s, what, allowed string) (int64, error) {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) || strings.ContainsAny(s, "xXpP_") {
		return 0, fmt.Errorf("%q is not a number of %s: write a number such as 0.5 or 2", s, what)
	}
	if n < 0 || n > 1e6 {
		return 0, fmt.Errorf("%q is out of range: allowed are %s", s, allowed)
	}
	return int64(math.Ceil(math.Round(n*1e6) / 1e3)), nil
}

// formatMilli renders thousandths as a decimal number without trailing zeros.
func formatMilli(n int64) string {
	return strconv.FormatFloat(float64(n)/1000, 'f', -1, 64)
}

func (c MilliCPU) String() string { return formatMilli(int64(c)) }

func (c MilliCPU) MarshalJSON() ([]byte, error) { return []byte(c.String()), nil }

func (c *MilliCPU) UnmarshalJSON(b []byte) error {
	n, err := parseMilli(unquote(b), "cpus", "0.01 to 4096 cores")
	*c = MilliCPU(n)
	return err
}

// Devices returns the number of whole devices in the amount, 0 for a share.
func (g MilliGPU) Devices() int { return int(g / 1000) }

// IsShare reports whether the amount is a share of one device, between 0 and 1.
func (g MilliGPU) IsShare() bool { return g > 0 && g < 1000 }

func (g MilliGPU) String() string { return formatMilli(int64(g)) }

func (g MilliGPU) MarshalJSON() ([]byte, error) { return []byte(g.String()), nil }

func (g *MilliGPU) UnmarshalJSON(b []byte) error {
	n, err := parseMilli(unquote(b), "gpus", fmt.Sprintf("0 to %d GPUs", MaxGPUs))
	*g = MilliGPU(n)
	return err
}

// ParseDuration parses a Go duration between 0 and 87600h (ten years). The error shows the
// allowed form or range.
func ParseDuration(s string) (Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration: write 90s, 15m or 4h", s)
	}
	if d < 0 || d > 87600*time.Hour {
		return 0, fmt.Errorf("%q is out of range: allowed are 0s to 87600h", s)
	}
	return Duration(d), nil
}

// String renders the duration without the zero units of time.Duration: 4h, not 4h0m0s.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// Std returns the duration as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

func (d *Duration) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] != '"' {
		return fmt.Errorf("%s has no unit: write 90s, 15m or 4h", b)
	}
	v, err := ParseDuration(unquote(b))
	if err != nil {
		return err
	}
	*d = v
	return nil
}

// unquote returns the text of a JSON string, or the raw text of any other JSON value.
func unquote(b []byte) string {
	var s string
	if json.Unmarshal(b, &s) == nil && len(b) > 0 && b[0] == '"' {
		return s
	}
	return string(b)
}
