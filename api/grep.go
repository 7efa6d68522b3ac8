package api

import (
	"fmt"
	"regexp"
	"regexp/syntax"
)

// maxGrepSize bounds a pattern of a log search. Each byte of a log costs up to one step for each
// part of the pattern, and a pattern of 1,000 characters such as x{1000}x{1000} has up to 142,000.
const maxGrepSize = 1000

// grepPattern compiles the pattern of a log search and refuses a pattern whose search is slow.
func grepPattern(pattern string) (*regexp.Regexp, error) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, err
	}
	if n := patternSize(parsed); n > maxGrepSize {
		return nil, fmt.Errorf("the pattern is too large: its repetitions have %d parts, and at most %d are allowed",
			n, maxGrepSize)
	}
	return regexp.Compile(pattern)
}

// patternSize counts the parts of a pattern, with each repetition written out. It stays far below
// an overflow: the parser allows at most 1,000 repetitions of one part, nested ones included.
func patternSize(re *syntax.Regexp) int {
	n := 1
	if re.Op == syntax.OpLiteral {
		n = len(re.Rune)
	}
	for _, sub := range re.Sub {
		n += patternSize(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return n
}
