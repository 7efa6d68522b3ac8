package workers

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"

	"berth/internal/lib/golden"
)

// payloads is the folder with a folder of recordings for each version whose work may be under way.
var payloads = filepath.Join("testdata", "payloads")

// present is the version whose recordings -update adds to. It never rewrites a recording: work under
// way has the payloads that were written at its time. The first change after a release sets present to
// the next version and records that one too. A folder goes once no version has to read its payloads.
const present = "0.1.0"

// payload is one value in a history, readable.
type payload struct {
	Encoding string          `json:"encoding"`
	Data     json.RawMessage `json:"data,omitempty"`
}

// recording is the payloads of an activity, a signal or a workflow's start, as a process of some
// version wrote them.
type recording struct {
	Input  []payload `json:"input"`
	Result *payload  `json:"result,omitempty"`
}

// payloadOf returns the payload into which the present code converts a value.
func payloadOf(t *testing.T, v any) payload {
	t.Helper()
	p, err := (limited{converter.GetDefaultDataConverter()}).ToPayload(v)
	if err != nil {
		t.Fatal(err)
	}
	return payload{Encoding: string(p.GetMetadata()[converter.MetadataEncoding]), Data: p.GetData()}
}

// raw returns the payload for the SDK, which passes it on without a conversion.
func (p payload) raw() converter.RawValue {
	return converter.NewRawValue(&commonpb.Payload{
		Metadata: map[string][]byte{converter.MetadataEncoding: []byte(p.Encoding)}, Data: p.Data,
	})
}

// raws returns the input for the SDK.
func (r recording) raws() (all []any) {
	for _, p := range r.Input {
		all = append(all, p.raw())
	}
	return all
}

// record writes a recording of the present version, unless it exists.
func record(t *testing.T, name string, r recording) {
	t.Helper()
	path := filepath.Join(payloads, present, name+".json")
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Write(t, path, string(text)+"\n")
}

// recordings returns all recordings by version and name.
func recordings(t *testing.T) map[string]map[string]recording {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(payloads, "*", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	all := map[string]map[string]recording{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var r recording
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for i := range r.Input {
			r.Input[i].Data = compact(t, r.Input[i].Data)
		}
		if r.Result != nil {
			r.Result.Data = compact(t, r.Result.Data)
		}
		version := filepath.Base(filepath.Dir(file))
		if all[version] == nil {
			all[version] = map[string]recording{}
		}
		all[version][strings.TrimSuffix(filepath.Base(file), ".json")] = r
	}
	return all
}

// compact returns the JSON as the code writes it, without the file's indentation.
func compact(t *testing.T, text []byte) []byte {
	t.Helper()
	if len(text) == 0 {
		return nil
	}
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// covers reports whether a payload of the present code holds all that a recorded one holds, under the
// same names. It may have further fields, which an older process ignores.
func covers(t *testing.T, got, recorded payload) bool {
	t.Helper()
	if got.Encoding != recorded.Encoding {
		return false
	}
	if len(recorded.Data) == 0 || len(got.Data) == 0 {
		return len(recorded.Data) == len(got.Data)
	}
	var g, r any
	if err := errors.Join(json.Unmarshal(got.Data, &g), json.Unmarshal(recorded.Data, &r)); err != nil {
		t.Fatal(err)
	}
	return within(g, r)
}

// within reports whether all of the JSON value r is in g.
func within(g, r any) bool {
	switch r := r.(type) {
	case map[string]any:
		m, ok := g.(map[string]any)
		for name, value := range r {
			ok = ok && within(m[name], value)
		}
		return ok
	case []any:
		list, ok := g.([]any)
		if !ok || len(list) != len(r) {
			return false
		}
		for i := range r {
			ok = ok && within(list[i], r[i])
		}
		return ok
	default:
		return g == r
	}
}

func TestAMissingOrRenamedFieldIsNotCovered(t *testing.T) {
	t.Parallel()
	recorded := payload{"json/plain", []byte(`{"a":[{"b":1}]}`)}
	for text, want := range map[string]bool{
		`{"a":[{"b":1}]}`: true, `{"a":[{"b":1,"c":2}],"d":3}`: true,
		`{"a":[{"B":1}]}`: false, `{"a":[{"b":2}]}`: false, `{"a":[]}`: false, `{}`: false, `[]`: false,
	} {
		if got := covers(t, payload{"json/plain", []byte(text)}, recorded); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
	if covers(t, payload{"binary/null", nil}, recorded) {
		t.Error("no value covers a value")
	}
}
