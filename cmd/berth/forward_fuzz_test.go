package main

import (
	"fmt"
	"testing"
)

// FuzzPorts: an accepted argument names ports in their range, and has one spelling.
func FuzzPorts(f *testing.F) {
	for _, seed := range []string{"8888", "6006:16006", "80:0", "0:80", "65536", "+80", "0080", "80:", ":80", "1:2:3", "-1:1", "٨٠"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePorts(text)
		if err != nil {
			return
		}
		if p.remote < 1 || p.remote > 65535 || p.local < 0 || p.local > 65535 {
			t.Errorf("%q names the ports %+v", text, p)
		}
		if whole := fmt.Sprintf("%d:%d", p.remote, p.local); text != whole && (text != fmt.Sprint(p.remote) || p.remote != p.local) {
			t.Errorf("%q is another spelling of %q", text, whole)
		}
	})
}
