package blob_test

import (
	"bytes"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"berth"
	"berth/internal/control/blob"
	"berth/internal/machine/fetch/gstest"
)

// storesAll stores all parts of an upload of the object a/b.
func storesAll(t *testing.T, s *blob.Store, id string, content []byte, p blob.Parts) {
	t.Helper()
	for n := 1; n <= p.Count(); n++ {
		at := int64(n-1) * p.PartBytes
		if status := storesPart(t, s, "a/b", id, n, content[at:at+p.Length(n)]); status != http.StatusOK {
			t.Fatalf("part %d: %d", n, status)
		}
	}
}

// TestAPartThatWasReplacedIsNotComposed replaces a part after its comparison, by the listing of the parts.
func TestAPartThatWasReplacedIsNotComposed(t *testing.T) {
	t.Parallel()
	server := gstest.StartStore(t)
	var s *blob.Store
	content, p, _ := inParts()
	replaced := false
	front := refusingFront(t, server.URL, "", func(r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/compose") && !replaced {
			replaced = true
			list := unfinished(t, s, "a")
			other := bytes.ToUpper(content[p.PartBytes:])
			if status := storesPart(t, s, "a/b", list[0].ID, 2, other); status != http.StatusOK {
				t.Errorf("the other part: %d", status)
			}
		}
		return false
	})
	s = googleAt(t, server, front)
	id := opens(t, s, "a/b", false)
	storesAll(t, s, id, content, p)
	if err := s.InParts().Complete(t.Context(), "a/b", id, p); berth.CodeOf(err) != berth.CodeInvalid || !replaced {
		t.Errorf("completed from a replaced part: %v", err)
	}
	holds(t, s, "a/b", "")
}

// TestAPartThatWasStoredAgainIsComposed stores the same part again after the comparison, as a request that is repeated
// after a lost answer. An upload whose part changes each time is given up.
func TestAPartThatWasStoredAgainIsComposed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		again, compositions int32
		code                berth.Code
	}{
		"once":   {1, 2, ""},
		"always": {100, 3, berth.CodeInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := gstest.StartStore(t)
			direct := googleAt(t, server, server.URL)
			content, p, _ := inParts()
			id := opens(t, direct, "a/b", false)
			storesAll(t, direct, id, content, p)
			var compositions atomic.Int32
			s := googleAt(t, server, refusingFront(t, server.URL, "", func(r *http.Request) bool {
				if strings.HasSuffix(r.URL.Path, "/compose") && compositions.Add(1) <= c.again {
					status := storesPart(t, direct, "a/b", id, 2, content[p.PartBytes:])
					if status != http.StatusOK {
						t.Errorf("the same part: %d", status)
					}
				}
				return false
			}))
			err := s.InParts().Complete(t.Context(), "a/b", id, p)
			if berth.CodeOf(err) != c.code || compositions.Load() != c.compositions {
				t.Errorf("%d compositions, want %d: %v", compositions.Load(), c.compositions, err)
			}
			want := string(content)
			if c.code != "" {
				want = ""
			}
			holds(t, s, "a/b", want)
		})
	}
}

// TestACompletionBesideAnotherFindsTheUploadGone lets another process complete or abort an upload at each request of a
// completion. The code is that of other stores, which name an unknown upload or an existing object.
func TestACompletionBesideAnotherFindsTheUploadGone(t *testing.T) {
	t.Parallel()
	completes := func(t *testing.T, s *blob.Store, u blob.Upload, p blob.Parts) error {
		return s.InParts().Complete(t.Context(), u.Key, u.ID, p)
	}
	aborts := func(t *testing.T, s *blob.Store, u blob.Upload, _ blob.Parts) error {
		return s.AbortUpload(t.Context(), u)
	}
	isList := func(r *http.Request) bool { return r.URL.Query().Has("startOffset") }
	isLook := func(r *http.Request) bool {
		return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/00000")
	}
	isCompose := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/compose") }
	for name, c := range map[string]struct {
		at     func(*http.Request) bool
		does   func(*testing.T, *blob.Store, blob.Upload, blob.Parts) error
		exists bool
	}{
		"completed before the list":        {isList, completes, true},
		"completed before the look":        {isLook, completes, true},
		"completed before the composition": {isCompose, completes, true},
		"aborted before the list":          {isList, aborts, false},
		"aborted before the look":          {isLook, aborts, false},
		"aborted before the composition":   {isCompose, aborts, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := gstest.StartStore(t)
			direct := googleAt(t, server, server.URL)
			content, p, _ := inParts()
			id := opens(t, direct, "a/b", false)
			storesAll(t, direct, id, content, p)
			var once atomic.Bool
			s := googleAt(t, server, refusingFront(t, server.URL, "", func(r *http.Request) bool {
				if c.at(r) && once.CompareAndSwap(false, true) {
					if err := c.does(t, direct, blob.Upload{Key: "a/b", ID: id}, p); err != nil {
						t.Errorf("the other process: %v", err)
					}
				}
				return false
			}))
			err := s.InParts().Complete(t.Context(), "a/b", id, p)
			if code := berth.CodeOf(err); code != berth.CodeNotFound || !once.Load() {
				t.Errorf("the completion: %v", err)
			}
			want := ""
			if c.exists {
				want = string(content)
			}
			holds(t, s, "a/b", want)
		})
	}
}

// TestAnUploadEndsBeforeItsPartsAreRemoved has a server that is busy when the object that begins an upload is removed.
// An upload that exists has all its parts.
func TestAnUploadEndsBeforeItsPartsAreRemoved(t *testing.T) {
	t.Parallel()
	server := gstest.StartStore(t)
	direct := googleAt(t, server, server.URL)
	id := opens(t, direct, "a/b", false)
	const count = 5
	for n := 1; n <= count; n++ {
		if status := storesPart(t, direct, "a/b", id, n, []byte("x")); status != http.StatusOK {
			t.Fatalf("part %d: %d", n, status)
		}
	}
	var tries atomic.Int32
	s := googleAt(t, server, answeringFront(t, server.URL, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodDelete || !strings.HasSuffix(r.URL.Path, "/00000") {
			return false
		}
		if tries.Add(1) <= 2 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		for n := 1; n <= count; n++ {
			has, err := direct.InParts().Has(r.Context(), "a/b", id, n, 1, sumOf("x"))
			if err == nil && !has {
				t.Errorf("part %d of an upload that exists is gone", n)
			}
		}
		return false
	}))
	if err := s.AbortUpload(t.Context(), blob.Upload{Key: "a/b", ID: id}); err != nil || tries.Load() < 3 {
		t.Errorf("the abort after %d tries: %v", tries.Load(), err)
	}
	if list := unfinished(t, s, "a"); len(list) != 0 {
		t.Errorf("after the abort: %v", list)
	}
}
