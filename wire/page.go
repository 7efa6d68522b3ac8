package wire

// Page is one page of a list.
type Page[T any] struct {
	Items      []T    `json:"items"`
	Total      *int   `json:"total,omitempty" doc:"with count: items on all pages; 1001 is more than 1000"`
	NextCursor string `json:"next_cursor,omitempty" doc:"value of cursor for the next page; absent on the last page"`
}
