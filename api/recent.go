package api

import "container/list"

// recent is a map of at most room entries; a new entry evicts the least recently used
// one. It is not safe for concurrent use.
type recent[K comparable, V any] struct {
	room  int
	order *list.List // of *recentEntry, the latest use in front
	at    map[K]*list.Element
}

// recentEntry is one entry of the list. The key allows removing the entry from the map.
type recentEntry[K comparable, V any] struct {
	key   K
	value V
}

func newRecent[K comparable, V any](room int) *recent[K, V] {
	return &recent[K, V]{room: room, order: list.New(), at: map[K]*list.Element{}}
}

// get returns the value of a key and counts as a use of the entry.
func (r *recent[K, V]) get(key K) (v V, ok bool) {
	e, ok := r.at[key]
	if !ok {
		return v, false
	}
	r.order.MoveToFront(e)
	return e.Value.(*recentEntry[K, V]).value, true
}

// put stores a value and counts as a use of the entry.
func (r *recent[K, V]) put(key K, v V) {
	if e, ok := r.at[key]; ok {
		e.Value.(*recentEntry[K, V]).value = v
		r.order.MoveToFront(e)
		return
	}
	if len(r.at) >= r.room {
		r.drop(r.order.Back())
	}
	r.at[key] = r.order.PushFront(&recentEntry[K, V]{key, v})
}

func (r *recent[K, V]) remove(key K) {
	if e, ok := r.at[key]; ok {
		r.drop(e)
	}
}

func (r *recent[K, V]) drop(e *list.Element) {
	r.order.Remove(e)
	delete(r.at, e.Value.(*recentEntry[K, V]).key)
}

// each calls f with every value, in no particular order, and stores the result.
func (r *recent[K, V]) each(f func(V) V) {
	for _, e := range r.at {
		entry := e.Value.(*recentEntry[K, V])
		entry.value = f(entry.value)
	}
}
