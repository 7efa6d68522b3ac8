package blob_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"berth"
	"berth/internal/control/blob"
)

// stores runs a test with an empty store of each kind.
func stores(t *testing.T, test func(t *testing.T, s *blob.Store)) {
	t.Parallel()
	kinds := map[string]func(*testing.T) *blob.Store{
		"file": func(t *testing.T) *blob.Store {
			s, _ := folder(t)
			return s
		},
		"mem": func(t *testing.T) *blob.Store {
			s, err := blob.Open(t.Context(), "mem://")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
	}
	for _, p := range protocols {
		kinds[p.name] = p.open
	}
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

// holds fails unless an object has this content, "" for a missing object.
func holds(t *testing.T, s *blob.Store, key, content string) {
	t.Helper()
	b, err := s.ReadAll(t.Context(), key, 1<<30)
	exists, failed := s.Exists(t.Context(), key)
	switch {
	case failed != nil || exists != (content != ""):
		t.Errorf("%s exists: %t, %v", key, exists, failed)
	case content == "" && berth.CodeOf(err) != berth.CodeNotFound:
		t.Errorf("the missing object %s: %v", key, err)
	case content != "" && (err != nil || string(b) != content):
		t.Errorf("%s has %d bytes, not the %d stored ones: %v", key, len(b), len(content), err)
	}
}

// TestStoresWriteWholeObjects stores objects of known and unknown length, also longer ones than one request takes, and
// cuts some off.
func TestStoresWriteWholeObjects(t *testing.T) {
	stores(t, func(t *testing.T, s *blob.Store) {
		holds(t, s, "a/b", "")
		large := strings.Repeat("0123456789abcdef", 17<<16)
		for key, c := range map[string]struct {
			content string
			size    int64
		}{
			"a/b": {"hello", 5}, "a/unknown": {"hello", -1}, "a/large": {large, int64(len(large))},
			"a/large-unknown": {large, -1}, "a/chunk": {large[:256<<10], 256 << 10},
		} {
			n, err := s.Put(t.Context(), key, strings.NewReader(c.content), c.size)
			if err != nil || n != int64(len(c.content)) {
				t.Errorf("%s: %d bytes stored, %v", key, n, err)
			}
			holds(t, s, key, c.content)
		}
		for _, size := range []int64{4, 6} {
			_, err := s.Put(t.Context(), "a/short", strings.NewReader("hello"), size)
			if berth.CodeOf(err) != berth.CodeInvalid {
				t.Errorf("5 bytes in place of %d: %v", size, err)
			}
			holds(t, s, "a/short", "")
		}
		for _, size := range []int64{-1, 100} {
			broken := io.MultiReader(strings.NewReader("hel"), iotest.ErrReader(errors.New("cut off")))
			if _, err := s.Put(t.Context(), "a/b", broken, size); err == nil {
				t.Error("a broken body was stored")
			}
			holds(t, s, "a/b", "hello")
		}
		if _, err := s.Put(t.Context(), "a/b", strings.NewReader("other"), 5); err != nil {
			t.Errorf("replace: %v", err)
		}
		holds(t, s, "a/b", "other")
		if _, err := s.ReadAll(t.Context(), "a/b", 4); berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("more than the limit was read: %v", err)
		}
	})
}

// TestStoresCreateAnObjectOnce lets many calls create one object.
func TestStoresCreateAnObjectOnce(t *testing.T) {
	stores(t, func(t *testing.T, s *blob.Store) {
		var created atomic.Int32
		t.Run("all", func(t *testing.T) {
			for range 8 {
				t.Run("one", func(t *testing.T) {
					t.Parallel()
					switch err := s.Create(t.Context(), "a/b", []byte("x")); {
					case err == nil:
						created.Add(1)
					case berth.CodeOf(err) != berth.CodeConflict:
						t.Error(err)
					}
				})
			}
		})
		if created.Load() != 1 {
			t.Errorf("%d calls have created the object", created.Load())
		}
		holds(t, s, "a/b", "x")
	})
}

// TestStoresListAndDeleteByFolder has neighbours whose names begin alike.
func TestStoresListAndDeleteByFolder(t *testing.T) {
	stores(t, func(t *testing.T, s *blob.Store) {
		keys := []string{"a-b/x", "a/b", "a/c/d", "a/c/e/f", "a/c=1/g", "ab/c", "b"}
		for _, key := range keys {
			if err := s.Create(t.Context(), key, []byte(key)); err != nil {
				t.Fatal(err)
			}
		}
		lists := func(what string, got []string, err error, want ...string) {
			t.Helper()
			slices.Sort(got)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %q, %v; want %q", what, got, err, want)
			}
		}
		walk := func() (got []string, err error) {
			err = s.Walk(t.Context(), func(o blob.Object) error {
				if o.Size != int64(len(o.Key)) {
					t.Errorf("%s is listed with %d bytes", o.Key, o.Size)
				}
				got = append(got, o.Key)
				return nil
			})
			return got, err
		}
		names, err := s.Names(t.Context(), "a")
		lists("names in a", names, err, "b")
		names, err = s.Names(t.Context(), "none")
		lists("names in none", names, err)
		names, err = s.Folders(t.Context(), "a")
		lists("folders in a", names, err, "c", "c=1")
		sizes, err := s.Sizes(t.Context(), "a/c", 10)
		if err != nil || len(sizes) != 1 || sizes["d"] != 5 {
			t.Errorf("sizes in a/c: %v, %v", sizes, err)
		}
		got, err := walk()
		lists("all", got, err, keys...)
		for range 2 {
			if err := errors.Join(s.DeleteFolder(t.Context(), "a"), s.Delete(t.Context(), "b")); err != nil {
				t.Errorf("delete: %v", err)
			}
		}
		got, err = walk()
		lists("the rest", got, err, "a-b/x", "ab/c")
		if err := s.Check(t.Context()); err != nil {
			t.Errorf("check: %v", err)
		}
	})
}

// TestARefusedObjectIsNotMissing takes the rights of the login away: an object that may not be read is no missing one,
// and a refused deletion is an error.
func TestARefusedObjectIsNotMissing(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T, func(*http.Request) bool) *blob.Store{
		"s3": refusing, "gs": refusingGoogle,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var refused atomic.Bool
			s := open(t, func(*http.Request) bool { return refused.Load() })
			if err := s.Create(t.Context(), "a/b", []byte("x")); err != nil {
				t.Fatal(err)
			}
			refused.Store(true)
			_, _, read := s.Open(t.Context(), "a/b")
			_, exists := s.Exists(t.Context(), "a/b")
			_, info := s.Info(t.Context(), "a/b")
			_, names := s.Names(t.Context(), "a")
			_, put := s.Put(t.Context(), "a/b", bytes.NewReader([]byte("y")), 1)
			for call, err := range map[string]error{
				"Open": read, "Exists": exists, "Info": info, "Names": names, "Put": put, "Check": s.Check(t.Context()),
				"Delete": s.Delete(t.Context(), "a/b"), "DeleteFolder": s.DeleteFolder(t.Context(), "a"),
				"Walk": s.Walk(t.Context(), func(blob.Object) error { return nil }),
			} {
				if code := berth.CodeOf(err); err == nil || code == berth.CodeNotFound || code == berth.CodeConflict {
					t.Errorf("%s of a refused object: %v", call, err)
				}
			}
			refused.Store(false)
			holds(t, s, "a/b", "x")
		})
	}
}

// TestUploadsOfNeighboursStayApart begins uploads of keys that begin alike.
func TestUploadsOfNeighboursStayApart(t *testing.T) {
	buckets(t, func(t *testing.T, _ protocol, s *blob.Store) {
		ids := map[string]string{}
		for _, key := range []string{"a/b-c", "a/b", "a/bc", "a/b.c"} {
			ids[key] = opens(t, s, key, false)
		}
		for key, id := range ids {
			if opens(t, s, key, true) != id {
				t.Errorf("another upload of %s goes on", key)
			}
			var of []blob.Upload
			err := s.InParts().Of(t.Context(), key, func(u blob.Upload) error {
				of = append(of, u)
				return nil
			})
			if err != nil || len(of) != 1 || of[0] != (blob.Upload{Key: key, ID: id}) {
				t.Errorf("the uploads of %s: %v, %v", key, of, err)
			}
		}
		if list := unfinished(t, s, "a"); len(list) != len(ids) {
			t.Errorf("all uploads: %v", list)
		}
	})
}
