package db

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"berth"
)

// Paging selects a page of a list.
type Paging struct {
	Limit  int    // 0: DefaultPage; at most MaxPage
	Cursor string // of the page before; "" for the first
}

// limit is how many items a page has at most.
func (p Paging) limit() int {
	if p.Limit <= 0 {
		return DefaultPage
	}
	return min(p.Limit, MaxPage)
}

// after decodes the cursor into the pointers, one for each part of the page's start
// position, and returns false without a cursor. A cursor is not a secret: an edited one
// selects only items of the same list.
func (p Paging) after(into ...any) (bool, error) {
	if p.Cursor == "" {
		return false, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(p.Cursor)
	var parts []json.RawMessage
	if err == nil {
		err = json.Unmarshal(b, &parts)
	}
	bad := err != nil || len(parts) != len(into)
	for i := 0; !bad && i < len(parts); i++ {
		bad = json.Unmarshal(parts[i], into[i]) != nil
		if text, ok := into[i].(*string); ok && strings.ContainsRune(*text, 0) {
			bad = true // the database refuses NUL in a text
		}
	}
	if bad {
		return false, berth.Errorf(berth.CodeInvalid, "cursor %.40q is not a cursor of this list", p.Cursor)
	}
	return true, nil
}

// cut returns the page and the cursor of the next page, "" for the last page. The caller
// has read one item more than a page into list. key returns an item's position.
func cut[T any](p Paging, list []T, key func(T) []any) ([]T, string) {
	n := p.limit()
	if len(list) <= n {
		return list, ""
	}
	b, err := json.Marshal(key(list[n-1]))
	if err != nil {
		panic("cursor does not marshal: " + err.Error())
	}
	return list[:n], base64.RawURLEncoding.EncodeToString(b)
}
