package blob_test

import (
	"fmt"
	"strings"
	"testing"

	"berth"
	"berth/internal/control/blob"
	"berth/wire"
)

// A manifest that a lying machine may send is refused, within the memory for the allowed chunks.
func TestManifestsWithChunksAreReadAsAgentsWriteThem(t *testing.T) {
	t.Parallel()
	chunk := func(digit string, bytes string) string {
		return fmt.Sprintf(`{"sha256":%q,"bytes":%s}`, strings.Repeat(digit, 64), bytes)
	}
	file := func(bytes string, chunks ...string) string {
		return fmt.Sprintf(`{"files":[{"path":"f","object":"","bytes":%s,"chunks":[%s]}]}`, bytes, strings.Join(chunks, ","))
	}
	many := strings.TrimSuffix(strings.Repeat("{},", wire.MaxPartChunks+1), ",")
	for name, c := range map[string]struct{ text, says string }{
		"two chunks":              {file("7", chunk("a", "3"), chunk("b", "4")), ""},
		"a repeated chunk":        {file("6", chunk("a", "3"), chunk("a", "3")), ""},
		"chunks that are null":    {`{"files":[{"object":"a/b/file-000000","bytes":1,"chunks":null}]}`, ""},
		"another sum":             {file("8", chunk("a", "3"), chunk("b", "4")), "has chunks of 7"},
		"two lengths":             {file("7", chunk("a", "3"), chunk("a", "4")), "with another length"},
		"no hash":                 {file("1", `{"bytes":1}`), "is none"},
		"upper case":              {file("1", chunk("A", "1")), "is none"},
		"nothing":                 {file("0", chunk("a", "0")), "is none"},
		"too long":                {file("4194305", chunk("a", "4194305")), "is none"},
		"too many":                {file("1", many), "more than 65536 chunks"},
		"an object with chunks":   {strings.Replace(file("3", chunk("a", "3")), `""`, `"a/b/file-000000"`, 1), "has chunks, too"},
		"neither":                 {file("3"), "is no file of this checkpoint"},
		"chunks that are no list": {`{"files":[{"bytes":1,"chunks":7}]}`, "chunks is no list"},
	} {
		l, err := blob.ReadManifest([]byte(c.text), "a/b")
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.says != "" && (berth.CodeOf(err) != berth.CodeInvalid || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
	l, err := blob.ReadManifest([]byte(file("10", chunk("a", "3"), chunk("b", "4"), chunk("a", "3"))), "a/b")
	if err != nil || len(l.Chunks) != 2 || l.Chunked != 10 || len(l.Files) != 0 {
		t.Errorf("%+v, %v", l, err)
	}
}
