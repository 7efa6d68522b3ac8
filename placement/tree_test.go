package placement

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type treeItem struct {
	key  int
	leaf leaf[*treeItem]
}

func TestTreeIsASortedSet(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tr := tree[*treeItem]{compare: func(a, b *treeItem) int { return cmp.Compare(a.key, b.key) }}
		items := map[int]*treeItem{}
		t.Repeat(map[string]func(*rapid.T){
			"toggle": func(t *rapid.T) {
				k := rapid.IntRange(0, 40).Draw(t, "key")
				if x := items[k]; x != nil {
					tr.remove(&x.leaf)
					delete(items, k)
					return
				}
				x := &treeItem{key: k}
				x.leaf.item, x.leaf.weight = x, weightOf(string(rune('a'+k)))
				items[k] = x
				tr.insert(&x.leaf)
			},
			"rebuild": func(t *rapid.T) {
				var all []*leaf[*treeItem]
				for _, x := range items {
					all = append(all, &x.leaf)
				}
				tr.build(all)
			},
			"": func(t *rapid.T) {
				var want []int
				for k := range items {
					want = append(want, k)
				}
				slices.Sort(want)
				if tr.len() != len(want) {
					t.Fatalf("length %d, want %d", tr.len(), len(want))
				}
				for i, k := range want {
					x, ok := tr.at(i)
					if !ok || x.key != k {
						t.Fatalf("item %d is %v, want %d", i, x, k)
					}
					if n := tr.before(x); n != i {
						t.Fatalf("%d items before item %d", n, i)
					}
				}
				if _, ok := tr.at(len(want)); ok {
					t.Fatal("an item past the end")
				}
			},
		})
	})
}
