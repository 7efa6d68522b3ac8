package berth

import "fmt"

// BytesText renders a number of bytes for display, in the largest binary unit up to TiB
// with one decimal: "512 bytes", "1.5 GiB".
func BytesText(n int64) string {
	f, unit := float64(n), "bytes"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if f < 1<<10 {
			break
		}
		f, unit = f/(1<<10), u
	}
	if unit == "bytes" {
		if n == 1 {
			unit = "byte"
		}
		return fmt.Sprintf("%d %s", n, unit)
	}
	return fmt.Sprintf("%.1f %s", f, unit)
}
