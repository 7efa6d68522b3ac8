package docker

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLayerIsReadFromTheListOfMounts(t *testing.T) {
	t.Parallel()
	const others = "25 30 0:23 / /proc rw,nosuid - proc proc rw\n" +
		"31 30 0:98 / /data rw - overlay overlay rw,lowerdir=/l,upperdir=/other,workdir=/w\n"
	for name, c := range map[string]struct{ mounts, want string }{
		"overlay":       {others + "30 1 0:98 / / rw,relatime master:9 - overlay overlay rw,lowerdir=/a:/b,upperdir=/snapshots/12/fs,workdir=/snapshots/12/work,index=off\n", "/snapshots/12/fs"},
		"relative path": {others + "30 1 0:98 / / rw - overlay overlay rw,lowerdir=l/A,upperdir=12/diff,workdir=12/work\n", ""},
		"no overlay":    {others + "30 1 8:1 / / rw - ext4 /dev/sda1 rw\n", ""},
		"no root":       {others, ""},
		"damaged":       {"30 1\nx - \n - overlay\n", ""},
	} {
		file := filepath.Join(t.TempDir(), "mountinfo")
		if err := os.WriteFile(file, []byte(c.mounts), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := mountedUpperDir(file); got != c.want {
			t.Errorf("%s: layer is %q, want %q", name, got, c.want)
		}
	}
	if got := mountedUpperDir(filepath.Join(t.TempDir(), "none")); got != "" {
		t.Errorf("without a list: layer is %q", got)
	}
}
