package cluster

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type treeItem struct {
	key  int
	leaf Leaf[*treeItem]
}

func TestTreeIsASortedSet(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tr := Tree[*treeItem]{Compare: func(a, b *treeItem) int { return cmp.Compare(a.key, b.key) }}
		items := map[int]*treeItem{}
		t.Repeat(map[string]func(*rapid.T){
			"toggle": func(t *rapid.T) {
				k := rapid.IntRange(0, 40).Draw(t, "key")
				if x := items[k]; x != nil {
					tr.Remove(&x.leaf)
					delete(items, k)
					return
				}
				x := &treeItem{key: k}
				x.leaf.Item, x.leaf.Weight = x, WeightOf(string(rune('a'+k)))
				items[k] = x
				tr.Insert(&x.leaf)
			},
			"rebuild": func(t *rapid.T) {
				var all []*Leaf[*treeItem]
				for _, x := range items {
					all = append(all, &x.leaf)
				}
				tr.Build(all)
			},
			"": func(t *rapid.T) {
				var want []int
				for k := range items {
					want = append(want, k)
				}
				slices.Sort(want)
				if tr.Len() != len(want) {
					t.Fatalf("length %d, want %d", tr.Len(), len(want))
				}
				for i, k := range want {
					x, ok := tr.At(i)
					if !ok || x.key != k {
						t.Fatalf("item %d is %v, want %d", i, x, k)
					}
					if n := tr.Before(x); n != i {
						t.Fatalf("%d items before item %d", n, i)
					}
				}
				if _, ok := tr.At(len(want)); ok {
					t.Fatal("an item past the end")
				}
			},
		})
	})
}
