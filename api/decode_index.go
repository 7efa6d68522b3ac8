package api

import "slices"

// index finds the ends of all objects and lists of the text in one pass.
func (d *decoder) index() {
	var open []int // indexes of the values that have not ended, the innermost last
	for at := 0; at < len(d.text); at++ {
		switch d.text[at] {
		case '"':
			at = d.endOfText(at) - 1
		case '{', '[':
			open = append(open, len(d.opens))
			d.opens, d.ends = append(d.opens, at), append(d.ends, 0)
		case '}', ']':
			d.ends[open[len(open)-1]] = at + 1
			open = open[:len(open)-1]
		}
	}
}

// end returns the offset after the value that begins at an offset.
func (d *decoder) end(at int) int {
	switch d.text[at] {
	case '{', '[':
		i, _ := slices.BinarySearch(d.opens, at)
		return d.ends[i]
	case '"':
		return d.endOfText(at)
	}
	for at < len(d.text) { // a number, true, false or null
		switch d.text[at] {
		case ' ', '\t', '\r', '\n', ',', '}', ']':
			return at
		}
		at++
	}
	return at
}

// endOfText returns the offset after the text that begins at an offset.
func (d *decoder) endOfText(at int) int {
	from := at
	for at++; d.text[at] != '"'; at++ {
		if d.text[at] == '\\' {
			at++ // a quote may follow
		}
	}
	d.passed += at + 1 - from
	return at + 1
}

// skipSpace returns the offset of the first byte that is no space, at an offset or after it.
func (d *decoder) skipSpace(at int) int {
	for {
		switch d.text[at] {
		case ' ', '\t', '\r', '\n':
			at++
		default:
			return at
		}
	}
}

// next returns the offset of the next value, or of the end of the object or list, after a value
// that ends at an offset.
func (d *decoder) next(at int) int {
	if at = d.skipSpace(at); d.text[at] == ',' {
		at = d.skipSpace(at + 1)
	}
	return at
}
