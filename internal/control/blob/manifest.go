package blob

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"berth"
	"berth/wire"
)

// Bounds of a manifest of a checkpoint. Agents write no larger one.
const (
	MaxManifest      = 64 << 20 // bytes
	MaxManifestFiles = 100_000
)

// Listed is the content of a manifest: the objects of the step, and the chunks of its other files.
type Listed struct {
	Files   map[string]int64 // lengths by the names of objects
	Chunks  map[string]int64 // lengths by hash
	Chunked int64            // bytes of the files that consist of chunks

	count int // chunks, with repeated ones
}

// ManifestFiles returns the names and lengths of the objects that a manifest lists; see ReadManifest.
func ManifestFiles(body []byte, folder string) (map[string]int64, error) {
	l, err := ReadManifest(body, folder)
	return l.Files, err
}

// ReadManifest returns the objects and chunks that a manifest lists. All objects must lie in the folder, each once. It
// needs memory for names and hashes alone, also if the text contains more: a manifest is written by a machine,
// which may lie. The error for a manifest that no agent writes has the code invalid.
func ReadManifest(body []byte, folder string) (Listed, error) {
	d := json.NewDecoder(bytes.NewReader(body))
	bad := func(says string, args ...any) (Listed, error) {
		return Listed{}, berth.Errorf(berth.CodeInvalid, "the manifest in %s is not as agents write it: "+says,
			append([]any{folder}, args...)...)
	}
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return bad("it is no JSON object")
	}
	var files Listed
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return bad("%v", err)
		}
		// Readers with encoding/json take any case of a key, and the last one of several.
		if name, _ := key.(string); !strings.EqualFold(name, "files") {
			if err := skipValue(d); err != nil {
				return bad("%v", err)
			}
			continue
		}
		if files.Files != nil || key != "files" {
			return bad("it has more than one list of files")
		}
		if files, err = readFiles(d, folder); err != nil {
			return bad("%v", err)
		}
	}
	if _, err := d.Token(); err != nil {
		return bad("%v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return bad("text follows the JSON object")
	}
	return files, nil
}

// readFiles reads the list of files, which may be null.
func readFiles(d *json.Decoder, folder string) (Listed, error) {
	l := Listed{Files: map[string]int64{}, Chunks: map[string]int64{}}
	switch t, err := d.Token(); {
	case err != nil:
		return l, err
	case t == nil:
		return l, nil
	case t != json.Delim('['):
		return l, errors.New("files is no list")
	}
	for n := 0; d.More(); n++ {
		var f struct {
			Object string    `json:"object"`
			Bytes  int64     `json:"bytes"`
			Chunks chunkList `json:"chunks"`
		}
		if err := d.Decode(&f); err != nil {
			return l, err
		}
		if n >= MaxManifestFiles {
			return l, fmt.Errorf("more than %d files are listed", MaxManifestFiles)
		}
		if len(f.Chunks) > 0 {
			if err := l.addChunks(f.Object, f.Bytes, f.Chunks); err != nil {
				return l, err
			}
			continue
		}
		name := path.Base(f.Object)
		_, twice := l.Files[name]
		switch {
		case path.Dir(f.Object) != folder || checkKey(f.Object) != nil || name == berth.ManifestName:
			return l, fmt.Errorf("object %.200q is no file of this checkpoint", f.Object)
		case f.Bytes < 0 || twice:
			return l, fmt.Errorf("object %.200q has %d bytes, or is listed twice", f.Object, f.Bytes)
		}
		l.Files[name] = f.Bytes
	}
	_, err := d.Token()
	return l, err
}

// chunkList is the list of chunks of a file. It is bounded while it is read, since short elements need more memory than
// text.
type chunkList []wire.Chunk

// UnmarshalJSON reads the list, which may be null.
func (l *chunkList) UnmarshalJSON(text []byte) error {
	*l = nil
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t == nil {
		return err
	} else if t != json.Delim('[') {
		return errors.New("chunks is no list")
	}
	for d.More() {
		if len(*l) >= wire.MaxPartChunks {
			return fmt.Errorf("more than %d chunks are listed", wire.MaxPartChunks)
		}
		var c wire.Chunk
		if err := d.Decode(&c); err != nil {
			return err
		}
		*l = append(*l, c)
	}
	return nil
}

// addChunks adds the chunks of one file.
func (l *Listed) addChunks(object string, bytes int64, chunks []wire.Chunk) error {
	if object != "" {
		return fmt.Errorf("the file of object %.200q has chunks, too", object)
	}
	if l.count += len(chunks); l.count > wire.MaxPartChunks {
		return fmt.Errorf("more than %d chunks are listed", wire.MaxPartChunks)
	}
	sum := int64(0)
	for _, c := range chunks {
		if before, ok := l.Chunks[c.SHA256]; !c.Valid() || ok && before != c.Bytes {
			return fmt.Errorf("chunk %.80q of %d bytes is none, or is listed with another length", c.SHA256, c.Bytes)
		}
		l.Chunks[c.SHA256] = c.Bytes
		sum += c.Bytes
	}
	if sum != bytes {
		return fmt.Errorf("a file of %d bytes has chunks of %d", bytes, sum)
	}
	l.Chunked += sum
	return nil
}

// maxDepth bounds the lists and objects within each other in the unread values of a manifest: a decoder keeps each
// open one in its memory.
const maxDepth = 32

// skipValue reads a value without keeping it.
func skipValue(d *json.Decoder) error {
	for depth := 0; ; {
		t, err := d.Token()
		if err != nil {
			return err
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			if depth++; depth > maxDepth {
				return fmt.Errorf("it has more than %d lists and objects within each other", maxDepth)
			}
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}
