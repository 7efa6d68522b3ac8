package blob_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"gocloud.dev/blob/s3blob"

	"berth/internal/control/blob"
	"berth/internal/machine/fetch/gstest"
	"berth/internal/machine/fetch/s3test"
)

// TestATemporaryAnswerProvesNothing answers one signed request of a proof as a busy store does. That is neither the
// refusal of a forged request nor a condition that the store ignores.
func TestATemporaryAnswerProvesNothing(t *testing.T) {
	t.Parallel()
	google, amazon := gstest.StartStore(t), s3test.Start(t)
	open := map[string]func(*testing.T, func(http.ResponseWriter, *http.Request) bool) *blob.Store{
		"gs": func(t *testing.T, answer func(http.ResponseWriter, *http.Request) bool) *blob.Store {
			return googleAt(t, google, answeringFront(t, google.URL, answer))
		},
		"s3": func(t *testing.T, answer func(http.ResponseWriter, *http.Request) bool) *blob.Store {
			client := s3test.ClientAt(answeringFront(t, amazon.URL, answer))
			s, err := blob.NewS3(t.Context(), client, amazon.Bucket, s3blob.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
	}
	proofs := map[string]struct {
		prove    func(*blob.Store) error
		requests int32 // by signed addresses
	}{"whole": {whole, 5}, "parts": {inPieces, 6}}
	for name, open := range open {
		for of, proof := range proofs {
			for _, status := range []int{http.StatusRequestTimeout, http.StatusTooManyRequests,
				http.StatusServiceUnavailable} {
				for busy := range proof.requests {
					var requests atomic.Int32
					s := open(t, func(w http.ResponseWriter, r *http.Request) bool {
						q := r.URL.Query()
						if !q.Has("X-Amz-Signature") && !q.Has("X-Goog-Signature") || requests.Add(1) != busy+1 {
							return false
						}
						w.WriteHeader(status)
						return true
					})
					err := proof.prove(s)
					_, unbound := errors.AsType[blob.UnboundError](err)
					if err == nil || unbound || !strings.Contains(err.Error(), fmt.Sprint(status)) {
						t.Errorf("%s, %s: %d in place of answer %d: %v", name, of, status, busy+1, err)
					}
				}
			}
		}
	}
}

// TestARefusedListOfPartsProvesNothing refuses the list that a completion compares.
func TestARefusedListOfPartsProvesNothing(t *testing.T) {
	t.Parallel()
	s := refusing(t, func(r *http.Request) bool {
		return r.Method == http.MethodGet && r.URL.Query().Get("max-parts") == "1000"
	})
	err := s.InParts().Prove(context.Background())
	if _, unbound := errors.AsType[blob.UnboundError](err); err == nil || unbound {
		t.Errorf("parts without a list: %v", err)
	}
}
