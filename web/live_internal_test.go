package web

import (
	"net/http"
	"testing"
)

func TestARecorderHasABound(t *testing.T) {
	t.Parallel()
	r := &recorder{header: http.Header{}, status: http.StatusOK}
	piece := make([]byte, recordedMost/2)
	for range 2 {
		if _, err := r.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := r.Write([]byte("x")); err == nil || n != 0 || r.status != http.StatusRequestEntityTooLarge || r.body.Cap() != 0 {
		t.Errorf("beyond the bound: %d, %v, status %d, %d bytes kept", n, err, r.status, r.body.Cap())
	}
}
