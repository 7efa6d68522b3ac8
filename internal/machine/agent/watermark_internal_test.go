package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/wire"
)

// The record is written over the one before, which may be longer.
func TestAShorterWatermarkReplacesALongerOne(t *testing.T) {
	t.Parallel()
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	long := `{"cluster":"c","number":3,"branch":"` + strings.Repeat("b", 200) + `"}`
	if err := os.WriteFile(filepath.Join(dir, "watermark.json"), []byte(long), 0o600); err != nil {
		t.Fatal(err)
	}
	w := openWatermark(dir, log)
	if got := w.of("c"); got.Number != 3 {
		t.Fatalf("read %+v", got)
	}
	for n, branch := range map[int64]string{4: "longer-branch", 5: "b"} {
		want := wire.Watermark{Number: w.of("c").Number + n, Branch: branch, Signature: "s"}
		if !w.accepts("c", wire.Watermark{}, &want) {
			t.Fatal("refused")
		}
		if got := openWatermark(dir, log).of("c"); got != want {
			t.Errorf("stored %+v, want %+v", got, want)
		}
	}
}
