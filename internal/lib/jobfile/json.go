package jobfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// parseJSON returns the tree of a JSON text. The YAML parser would nearly do, but reads
// escapes such as surrogate pairs differently.
func parseJSON(src string) (*node, error) {
	p := &jsonParser{src: src, decoder: json.NewDecoder(strings.NewReader(src))}
	p.decoder.UseNumber()
	root, err := p.value(0)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
		return nil, p.syntax(err)
	}
	rest := p.next()
	if _, err := p.decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, &syntaxError{at: rest, detail: "more text after the job, but a job file contains one job"}
	}
	return root, nil
}

// jsonParser builds the tree from the tokens of encoding/json, which decides on the
// syntax; the parser only adds the places.
type jsonParser struct {
	src     string
	decoder *json.Decoder
	seen    int // bytes of src that line and column cover
	line    int
	column  int
}

// next is the place of the next token. The decoder's offset is the end of the last one,
// so the separators in between are skipped.
func (p *jsonParser) next() place {
	return p.placeAt(p.skip(int(p.decoder.InputOffset()), " \t\r\n,:"))
}

// skip returns the first offset from here on with a byte that is not listed in bytes.
func (p *jsonParser) skip(offset int, bytes string) int {
	offset = min(max(offset, 0), len(p.src))
	for offset < len(p.src) && strings.IndexByte(bytes, p.src[offset]) >= 0 {
		offset++
	}
	return offset
}

// placeAt returns the place of an offset. It counts on from the last place, so that the
// whole text is counted once; an earlier offset, which occurs with errors, starts over.
func (p *jsonParser) placeAt(offset int) place {
	if offset < p.seen {
		p.seen, p.line, p.column = 0, 0, 0
	}
	skipped := p.src[p.seen:offset]
	if n := strings.Count(skipped, "\n"); n > 0 {
		p.line += n
		p.column = utf8.RuneCountInString(skipped[strings.LastIndexByte(skipped, '\n')+1:])
	} else {
		p.column += utf8.RuneCountInString(skipped)
	}
	p.seen = offset
	return place{line: p.line + 1, column: p.column + 1}
}

// value reads one value, of any kind. The bound on depth bounds the recursion.
func (p *jsonParser) value(depth int) (*node, error) {
	at := p.next()
	start := p.seen
	if depth > maxDepth {
		return nil, &syntaxError{at: at, detail: fmt.Sprintf("nested deeper than %d levels", maxDepth)}
	}
	tok, err := p.decoder.Token()
	if err != nil {
		return nil, err
	}
	at.width = utf8.RuneCountInString(firstLine(p.src[start:min(int(p.decoder.InputOffset()), len(p.src))]))
	switch v := tok.(type) {
	case nil:
		return &node{kind: null, text: "null", at: at}, nil
	case bool:
		return &node{kind: boolean, text: fmt.Sprint(v), at: at}, nil
	case json.Number:
		return &node{kind: number, text: v.String(), at: at}, nil
	case string:
		return &node{kind: text, text: v, at: at}, nil
	case json.Delim:
		if v == '[' {
			return p.list(at, depth)
		}
		return p.mapping(at, depth)
	default:
		panic(fmt.Sprintf("unknown JSON token %T", tok))
	}
}

// list reads the items of a list after its bracket.
func (p *jsonParser) list(at place, depth int) (*node, error) {
	out := &node{kind: list, at: at}
	for p.decoder.More() {
		item, err := p.value(depth + 1)
		if err != nil {
			return nil, midway(err)
		}
		out.items = append(out.items, item)
	}
	_, err := p.decoder.Token()
	return out, midway(err)
}

// mapping reads the entries of an object after its brace. Repeated keys are kept, because
// encoding/json would silently take the last one.
func (p *jsonParser) mapping(at place, depth int) (*node, error) {
	out := &node{kind: mapping, at: at}
	for p.decoder.More() {
		key, err := p.value(depth + 1)
		if err != nil {
			return nil, midway(err)
		}
		value, err := p.value(depth + 1)
		if err != nil {
			return nil, midway(err)
		}
		out.entries = append(out.entries, entry{key: key.text, at: key.at, value: value})
	}
	_, err := p.decoder.Token()
	return out, midway(err)
}

// midway distinguishes a text that ends inside a value from an empty text.
func midway(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// syntax adds a place to an error of encoding/json.
func (p *jsonParser) syntax(err error) error {
	var ours *syntaxError
	var theirs *json.SyntaxError
	switch {
	case errors.As(err, &ours):
		return ours
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &syntaxError{at: p.placeAt(len(strings.TrimRight(p.src, " \t\r\n"))),
			detail: "not JSON: the text ends inside a value"}
	case errors.As(err, &theirs):
		return &syntaxError{at: p.placeAt(p.skip(int(theirs.Offset)-1, " \t\r\n")),
			detail: "not JSON: " + theirs.Error()}
	default:
		return &syntaxError{at: p.next(), detail: "not JSON: " + err.Error()}
	}
}
