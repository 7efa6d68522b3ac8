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
)

// Bounds of a manifest of a checkpoint. Agents write no larger one.
const (
	MaxManifest      = 64 << 20 // bytes
	MaxManifestFiles = 100_000
)

// ManifestFiles returns the names and lengths of the objects that a manifest lists. All must lie in the folder, each
// once. It needs memory for the names alone, also if the text contains more: a manifest is written by a machine,
// which may lie. The error for a manifest that no agent writes has the code invalid.
func ManifestFiles(body []byte, folder string) (map[string]int64, error) {
	d := json.NewDecoder(bytes.NewReader(body))
	bad := func(says string, args ...any) (map[string]int64, error) {
		return nil, berth.Errorf(berth.CodeInvalid, "the manifest in %s is not as agents write it: "+says,
			append([]any{folder}, args...)...)
	}
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return bad("it is no JSON object")
	}
	var files map[string]int64
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
		if files != nil || key != "files" {
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
func readFiles(d *json.Decoder, folder string) (map[string]int64, error) {
	files := map[string]int64{}
	switch t, err := d.Token(); {
	case err != nil:
		return nil, err
	case t == nil:
		return files, nil
	case t != json.Delim('['):
		return nil, errors.New("files is no list")
	}
	for d.More() {
		var f struct {
			Object string `json:"object"`
			Bytes  int64  `json:"bytes"`
		}
		if err := d.Decode(&f); err != nil {
			return nil, err
		}
		name := path.Base(f.Object)
		_, twice := files[name]
		switch {
		case path.Dir(f.Object) != folder || checkKey(f.Object) != nil || name == berth.ManifestName:
			return nil, fmt.Errorf("object %.200q is no file of this checkpoint", f.Object)
		case f.Bytes < 0 || twice:
			return nil, fmt.Errorf("object %.200q has %d bytes, or is listed twice", f.Object, f.Bytes)
		case len(files) >= MaxManifestFiles:
			return nil, fmt.Errorf("more than %d files are listed", MaxManifestFiles)
		}
		files[name] = f.Bytes
	}
	_, err := d.Token()
	return files, err
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
