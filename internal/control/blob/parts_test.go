package blob_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"berth"
	"berth/internal/control/blob"
)

// inParts is an object of two parts: a full one, and a short last one.
func inParts() (content []byte, p blob.Parts, sums [][32]byte) {
	content = bytes.Repeat([]byte("0123456789abcdef"), blob.LeastPart/16+10)
	p = blob.Parts{Bytes: int64(len(content)), PartBytes: blob.LeastPart}
	all := sha256.New()
	for n := 1; n <= p.Count(); n++ {
		at := int64(n-1) * p.PartBytes
		sum := sha256.Sum256(content[at : at+p.Length(n)])
		all.Write(sum[:])
		sums = append(sums, sum)
	}
	p.Sum = [32]byte(all.Sum(nil))
	return content, p, sums
}

// storesPart stores a part by a signed address and returns the status: 404 also if the store has no such upload.
func storesPart(t *testing.T, s *blob.Store, key, id string, n int, content []byte) int {
	t.Helper()
	a, err := s.InParts().Sign(t.Context(), key, id, n, int64(len(content)), sha256.Sum256(content), blob.AddressLife)
	if berth.CodeOf(err) == berth.CodeNotFound {
		return http.StatusNotFound
	}
	if err != nil {
		t.Fatal(err)
	}
	status, _ := sends(t, "PUT", a, string(content), nil)
	return status
}

func opens(t *testing.T, s *blob.Store, key string, resumed bool) string {
	t.Helper()
	id, again, err := s.InParts().Begin(t.Context(), key)
	if err != nil || again != resumed {
		t.Fatalf("open an upload of %s: resumed %t, %v", key, again, err)
	}
	return id
}

func unfinished(t *testing.T, s *blob.Store, folder string) (list []blob.Upload) {
	t.Helper()
	err := s.Uploads(t.Context(), folder, func(u blob.Upload) error {
		list = append(list, u)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestAnObjectInPartsIsCompletedFromItsPartsAlone(t *testing.T) {
	buckets(t, func(t *testing.T, _ protocol, s *blob.Store) {
		content, p, sums := inParts()
		first, last := content[:p.PartBytes], content[p.PartBytes:]
		id := opens(t, s, "a/b", false)
		refused := func(name string, code berth.Code) {
			t.Helper()
			if err := s.InParts().Complete(t.Context(), "a/b", id, p); berth.CodeOf(err) != code {
				t.Errorf("%s: %v", name, err)
			}
			if ok, err := s.Exists(t.Context(), "a/b"); ok || err != nil {
				t.Fatalf("%s: the object exists: %v, %v", name, ok, err)
			}
		}
		refused("no part", berth.CodeInvalid)
		if status := storesPart(t, s, "a/b", id, 1, first); status != http.StatusOK {
			t.Fatalf("part 1: %d", status)
		}
		refused("one part of two", berth.CodeInvalid)
		if status := storesPart(t, s, "a/b", id, 2, last[1:]); status != http.StatusOK {
			t.Fatalf("a shorter part 2: %d", status)
		}
		refused("a shorter part", berth.CodeInvalid)
		if status := storesPart(t, s, "a/b", id, 2, bytes.ToUpper(last)); status != http.StatusOK {
			t.Fatalf("another part 2: %d", status)
		}
		refused("another content", berth.CodeInvalid)
		for range 2 { // a lost answer: the same part again
			if status := storesPart(t, s, "a/b", id, 2, last); status != http.StatusOK {
				t.Fatalf("part 2: %d", status)
			}
		}
		if opens(t, s, "a/b", true) != id {
			t.Error("a second opening is another upload")
		}
		for n, want := range map[int]bool{1: true, 2: true, 3: false} {
			sum := sums[min(n, 2)-1]
			if has, err := s.InParts().Has(t.Context(), "a/b", id, n, p.Length(n), sum); err != nil || has != want {
				t.Errorf("part %d: stored %t, %v", n, has, err)
			}
			if has, err := s.InParts().Has(t.Context(), "a/b", id, n, p.Length(n), [32]byte{1}); err != nil || has {
				t.Errorf("another content of part %d: stored %t, %v", n, has, err)
			}
		}
		if err := s.InParts().Complete(t.Context(), "a/b", id, p); err != nil {
			t.Fatal(err)
		}
		if got, err := s.ReadAll(t.Context(), "a/b", 1<<30); err != nil || !bytes.Equal(got, content) {
			t.Errorf("another object of %d bytes is stored: %v", len(got), err)
		}
		o, err := s.Info(t.Context(), "a/b")
		other := p
		other.Sum[0] ^= 1
		if err != nil || !o.Consists(p) || o.Consists(other) || o.Is(p.Bytes, p.Sum) {
			t.Errorf("the object is described as %+v, %v", o, err)
		}
		if status := storesPart(t, s, "a/b", id, 2, last); status != http.StatusNotFound {
			t.Errorf("a part after the completion: %d", status)
		}
	})
}

// TestAnUploadNeverReplacesAnObject completes two uploads of one key, and one over an object without parts.
func TestAnUploadNeverReplacesAnObject(t *testing.T) {
	buckets(t, func(t *testing.T, _ protocol, s *blob.Store) {
		content := []byte("the only part")
		sum := sha256.Sum256(content)
		p := blob.Parts{Bytes: int64(len(content)), PartBytes: blob.LeastPart, Sum: sha256.Sum256(sum[:])}
		if _, err := s.Put(t.Context(), "a/b", strings.NewReader("older"), -1); err != nil {
			t.Fatal(err)
		}
		id := opens(t, s, "a/b", false)
		if status := storesPart(t, s, "a/b", id, 1, content); status != http.StatusOK {
			t.Fatalf("the part: %d", status)
		}
		if err := s.InParts().Complete(t.Context(), "a/b", id, p); berth.CodeOf(err) != berth.CodeConflict {
			t.Errorf("completed over another object: %v", err)
		}
		if got, err := s.ReadAll(t.Context(), "a/b", 100); err != nil || string(got) != "older" {
			t.Errorf("the object is %q, %v", got, err)
		}
	})
}

func TestTheAddressOfAPartIsBound(t *testing.T) {
	buckets(t, func(t *testing.T, p protocol, s *blob.Store) {
		const body = "the content of a part"
		id, other := opens(t, s, "a/b", false), opens(t, s, "a/c", false)
		sum := sha256.Sum256([]byte(body))
		a, err := s.InParts().Sign(t.Context(), "a/b", id, 1, int64(len(body)), sum, blob.AddressLife)
		if err != nil {
			t.Fatal(err)
		}
		to := func(key, id string, number int) func(*http.Request) {
			return func(r *http.Request) { p.part(r, key, id, number) }
		}
		for name, c := range map[string]struct {
			method, body string
			edit         func(*http.Request)
		}{
			"another key":    {"PUT", body, to("a/c", id, 1)},
			"another part":   {"PUT", body, to("a/b", id, 2)},
			"another upload": {"PUT", body, to("a/b", other, 1)},
			"a whole object": {"PUT", body, to("a/b", id, 0)},
			"to complete":    {"POST", body, nil},
			"to abort":       {"DELETE", "", nil},
			"a shorter body": {"PUT", body[1:], nil},
			"a longer body":  {"PUT", body + "x", nil},
			"another body":   {"PUT", strings.Repeat("x", len(body)), nil},
			"no checksum":    {"PUT", body, func(r *http.Request) { r.Header.Del(p.sum) }},
		} {
			if status, text := sends(t, c.method, a, c.body, c.edit); status < 400 || status >= 500 {
				t.Errorf("%s: %d %s", name, status, text)
			}
		}
		for n := 1; n <= 2; n++ {
			has, err := s.InParts().Has(t.Context(), "a/b", id, n, int64(len(body)), sha256.Sum256([]byte(body)))
			if err != nil || has {
				t.Errorf("part %d is stored: %t, %v", n, has, err)
			}
		}
		if status, text := sends(t, "PUT", a, body, nil); status != http.StatusOK {
			t.Errorf("the signed request: %d %s", status, text)
		}
	})
}

func TestUploadsAreListedAndAborted(t *testing.T) {
	buckets(t, func(t *testing.T, _ protocol, s *blob.Store) {
		id := opens(t, s, "a/b", false)
		opens(t, s, "b/c", false)
		list := unfinished(t, s, "a")
		if len(list) != 1 || list[0] != (blob.Upload{Key: "a/b", ID: id}) {
			t.Fatalf("uploads below a: %+v", list)
		}
		for range 2 {
			if err := s.AbortUpload(t.Context(), list[0]); err != nil {
				t.Fatal(err)
			}
		}
		if status := storesPart(t, s, "a/b", id, 1, []byte("x")); status != http.StatusNotFound {
			t.Errorf("a part of an aborted upload: %d", status)
		}
		err := s.InParts().Complete(t.Context(), "a/b", id, blob.Parts{Bytes: 1, PartBytes: blob.LeastPart})
		if berth.CodeOf(err) != berth.CodeNotFound {
			t.Errorf("completed after the abort: %v", err)
		}
		if list := unfinished(t, s, "b"); len(list) != 1 {
			t.Errorf("uploads below b: %+v", list)
		}
	})
}

func TestAStoreThatKeepsTheConditionsOfPartsIsProven(t *testing.T) {
	buckets(t, func(t *testing.T, _ protocol, s *blob.Store) {
		for range 2 {
			if err := s.InParts().Prove(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		names, err := s.Names(t.Context(), "signing")
		list := unfinished(t, s, "signing")
		if err != nil || len(names) != 0 || len(list) != 0 {
			t.Errorf("the proof has left objects %v and uploads %v: %v", names, list, err)
		}
	})
}

// TestALoginMayLackTheRightToListUploads plays a login of before: sweeps pass, and the proof of parts fails.
func TestALoginMayLackTheRightToListUploads(t *testing.T) {
	t.Parallel()
	s := refusing(t, func(r *http.Request) bool {
		return r.Method == http.MethodGet && r.URL.Query().Has("uploads")
	})
	if list := unfinished(t, s, "tenants"); len(list) != 0 {
		t.Errorf("uploads: %v", list)
	}
	if _, err := s.SweepProofs(t.Context(), -1); err != nil {
		t.Errorf("sweep: %v", err)
	}
	if err := s.ProveSigning(t.Context()); err != nil {
		t.Errorf("whole objects: %v", err)
	}
	if err := s.InParts().Prove(t.Context()); err == nil || !strings.Contains(err.Error(), "AccessDenied") {
		t.Errorf("objects in parts: %v", err)
	}
}

// TestALoginThatMayNotAbortUploadsIsNotProven also finds that the refused aborts are errors, and leave nothing of the
// proof.
func TestALoginThatMayNotAbortUploadsIsNotProven(t *testing.T) {
	t.Parallel()
	s := refusing(t, func(r *http.Request) bool {
		return r.Method == http.MethodDelete && r.URL.Query().Has("uploadId")
	})
	if err := s.InParts().Prove(t.Context()); err == nil || !strings.Contains(err.Error(), "abort an upload") {
		t.Errorf("objects in parts: %v", err)
	}
	names, err := s.Names(t.Context(), "signing")
	list := unfinished(t, s, "signing")
	if err != nil || len(names) != 0 || len(list) != 0 {
		t.Errorf("the proof has left objects %v and uploads %v: %v", names, list, err)
	}
	opens(t, s, "a/b", false)
	if err := s.Uploads(t.Context(), "a", func(u blob.Upload) error {
		return s.AbortUpload(t.Context(), u)
	}); err == nil {
		t.Error("a refused abort passes")
	}
	stuck := []string{strings.Repeat("a", 26), strings.Repeat("b", 26)}
	for _, name := range stuck {
		opens(t, s, "signing/"+name, false)
	}
	_, err = s.SweepProofs(t.Context(), -1)
	for _, name := range stuck {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("the sweep does not name %s: %v", name, err)
		}
	}
}

// TestLeftoversOfAKilledProofAreSwept cuts a proof off as kill -9 does: its object and its upload stay.
func TestLeftoversOfAKilledProofAreSwept(t *testing.T) {
	buckets(t, func(t *testing.T, _ protocol, s *blob.Store) {
		own := "signing/" + strings.Repeat("a2", 13)
		foreign := []string{"signing/file", "signing/x/" + strings.Repeat("a", 26), own + "xx", own + "/x", "signing/" +
			strings.Repeat("A", 26)}
		for _, key := range append(foreign, own+"x") {
			if _, err := s.Put(t.Context(), key, strings.NewReader("x"), -1); err != nil {
				t.Fatal(err)
			}
		}
		opens(t, s, own, false)
		opens(t, s, "signing/file", false)
		if n, err := s.SweepProofs(t.Context(), blob.ProofAge); err != nil || n != 0 {
			t.Errorf("%d leftovers of a proof that may still run were removed: %v", n, err)
		}
		if n, err := s.SweepProofs(t.Context(), -1); err != nil || n != 2 {
			t.Errorf("%d leftovers were removed, want 2: %v", n, err)
		}
		names, err := s.Names(t.Context(), "signing")
		list := unfinished(t, s, "signing")
		if err != nil || len(names) != 3 || len(list) != 1 || list[0].Key != "signing/file" {
			t.Errorf("left are objects %v and uploads %v: %v", names, list, err)
		}
		for _, key := range foreign {
			if ok, err := s.Exists(t.Context(), key); err != nil || !ok {
				t.Errorf("%s of another program exists %t, %v", key, ok, err)
			}
		}
	})
}

func TestAManifestIsReadWithinBounds(t *testing.T) {
	t.Parallel()
	entry := func(n, bytes string) string { return `{"path":"x","object":"a/b/` + n + `","bytes":` + bytes + `}` }
	for name, c := range map[string]struct {
		text, says string
		files      int
	}{
		"of an agent": {`{"step":5,"files":[` + entry("file-000000", "3") + `,` + entry("file-000001", "0") +
			`],"at":"x"}`, "", 2},
		"no files": {`{"step":5,"files":null}`, "", 0},
		"deep values": {`{"x":` + strings.Repeat("[", 32) + strings.Repeat("]", 32) + `,"files":[` +
			entry("f", "1") + `]}`, "", 1},
		"too deep values":   {`{"x":` + strings.Repeat("[", 33), "more than 32 lists", 0},
		"too deep objects":  {`{"x":` + strings.Repeat(`{"x":`, 33), "more than 32 lists", 0},
		"other values":      {`{"x":{"files":[{"a":[1,2]}]},"files":[` + entry("f", "1") + `]}`, "", 1},
		"no object":         {`[]`, "no JSON object", 0},
		"cut off":           {`{"files":[` + entry("f", "1"), "EOF", 0},
		"two lists":         {`{"files":[],"files":[]}`, "more than one list", 0},
		"another case":      {`{"Files":[]}`, "more than one list", 0},
		"text at the end":   {`{"files":[]} {}`, "text follows", 0},
		"a number of bytes": {`{"files":[` + entry("f", `"1"`) + `]}`, "cannot unmarshal", 0},
		"less than no byte": {`{"files":[` + entry("f", "-1") + `]}`, "-1 bytes", 0},
		"a file twice":      {`{"files":[` + entry("f", "1") + `,` + entry("f", "1") + `]}`, "listed twice", 0},
		"another folder":    {`{"files":[{"object":"a/c/f","bytes":1}]}`, "no file of this checkpoint", 0},
		"the manifest":      {`{"files":[` + entry(berth.ManifestName, "1") + `]}`, "no file of this checkpoint", 0},
		"empty entries":     {`{"files":[{},{},{}]}`, "no file of this checkpoint", 0},
	} {
		files, err := blob.ManifestFiles([]byte(c.text), "a/b")
		switch {
		case c.says == "" && (err != nil || len(files) != c.files):
			t.Errorf("%s: %v, %v", name, files, err)
		case c.says != "" && (berth.CodeOf(err) != berth.CodeInvalid || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v", name, err)
		}
	}
	var many strings.Builder
	many.WriteString(`{"files":[`)
	for i := range blob.MaxManifestFiles + 1 {
		if i > 0 {
			many.WriteByte(',')
		}
		many.WriteString(entry(fmt.Sprintf("file-%06d", i), "1"))
	}
	many.WriteString(`]}`)
	if _, err := blob.ManifestFiles([]byte(many.String()), "a/b"); err == nil ||
		!strings.Contains(err.Error(), "more than 100000 files") {
		t.Errorf("too many files: %v", err)
	}
}
