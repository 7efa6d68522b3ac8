package web

import (
	"cmp"
	"slices"
)

// A layered layout of a graph without cycles, after Sugiyama: each node lies in the layer after the
// last of its needs, long edges get a point in each layer that they cross, and sweeps over the layers
// sort each layer by the mean place of its neighbors. The result depends on the input alone.

// layoutNode is a node of a layout, or a point of an edge that crosses a layer.
type layoutNode struct {
	index int // of the step; -1: a point of an edge
	layer int
	place int // in its layer, from 0
	ups   []*layoutNode
	downs []*layoutNode
}

// layoutEdge is an edge with the points that it passes, its ends included.
type layoutEdge struct {
	from, to int // indexes of steps
	points   []*layoutNode
}

// layered is a finished layout.
type layered struct {
	nodes  []*layoutNode   // by step
	layers [][]*layoutNode // from left to right, each from top to bottom
	edges  []layoutEdge
}

// sweeps is the number of passes over the layers, in turns from left to right and back.
const sweeps = 4

// layOut lays a graph out. needs lists for each node the indexes of the nodes before it. Needs that do
// not exist or that close a cycle are left out, so that a faulty document is still drawn.
func layOut(needs [][]int) layered {
	g := layered{nodes: make([]*layoutNode, len(needs))}
	for i := range needs {
		g.nodes[i] = &layoutNode{index: i}
	}
	ranks := ranksOf(needs)
	deepest := 0
	for i, rank := range ranks {
		g.nodes[i].layer = rank
		deepest = max(deepest, rank)
	}
	g.layers = make([][]*layoutNode, deepest+1)
	for _, n := range g.nodes {
		g.layers[n.layer] = append(g.layers[n.layer], n)
	}
	for to, list := range needs {
		for _, from := range list {
			if from >= 0 && from < len(needs) && ranks[from] < ranks[to] {
				g.connect(from, to)
			}
		}
	}
	for _, layer := range g.layers {
		numberLayer(layer, nil)
	}
	for i := range sweeps {
		if i%2 == 0 {
			for _, layer := range g.layers[1:] {
				numberLayer(layer, func(n *layoutNode) []*layoutNode { return n.ups })
			}
		} else {
			for k := len(g.layers) - 2; k >= 0; k-- {
				numberLayer(g.layers[k], func(n *layoutNode) []*layoutNode { return n.downs })
			}
		}
	}
	return g
}

// connect adds an edge, with a point in each layer between its ends. The points give the edge a place
// in each layer, which the sweeps can move.
func (g *layered) connect(from, to int) {
	e := layoutEdge{from: from, to: to, points: []*layoutNode{g.nodes[from]}}
	at := g.nodes[from]
	link := func(next *layoutNode) {
		at.downs, next.ups = append(at.downs, next), append(next.ups, at)
		e.points, at = append(e.points, next), next
	}
	for layer := g.nodes[from].layer + 1; layer < g.nodes[to].layer; layer++ {
		p := &layoutNode{index: -1, layer: layer}
		g.layers[layer] = append(g.layers[layer], p)
		link(p)
	}
	link(g.nodes[to])
	g.edges = append(g.edges, e)
}

// ranksOf returns the length of the longest way to each node. A need that closes a cycle does not
// count.
func ranksOf(needs [][]int) []int {
	ranks := make([]int, len(needs))
	state := make([]int8, len(needs)) // 1: being visited, 2: done
	var visit func(i int) int
	visit = func(i int) int {
		if state[i] != 0 { // done; or visited now, where the need closes a cycle
			return ranks[i]
		}
		state[i] = 1
		rank := 0
		for _, n := range needs[i] {
			if n >= 0 && n < len(needs) && state[n] != 1 {
				rank = max(rank, visit(n)+1)
			}
		}
		ranks[i], state[i] = rank, 2
		return rank
	}
	for i := range needs {
		visit(i)
	}
	return ranks
}

// numberLayer sorts a layer by the mean place of each node's neighbors and numbers it. A node without
// neighbors keeps its place.
func numberLayer(layer []*layoutNode, neighbors func(*layoutNode) []*layoutNode) {
	if neighbors != nil {
		weight := make(map[*layoutNode]float64, len(layer))
		for _, n := range layer {
			weight[n] = float64(n.place)
			if list := neighbors(n); len(list) > 0 {
				sum := 0
				for _, m := range list {
					sum += m.place
				}
				weight[n] = float64(sum) / float64(len(list))
			}
		}
		slices.SortStableFunc(layer, func(a, b *layoutNode) int { return cmp.Compare(weight[a], weight[b]) })
	}
	for i, n := range layer {
		n.place = i
	}
}

// crossings counts the pairs of edges that cross, layer by layer. Tests judge layouts by it.
func (g layered) crossings() (n int) {
	type segment struct{ from, to int }
	between := make([][]segment, len(g.layers))
	for _, e := range g.edges {
		for i := 1; i < len(e.points); i++ {
			a, b := e.points[i-1], e.points[i]
			between[a.layer] = append(between[a.layer], segment{a.place, b.place})
		}
	}
	for _, list := range between {
		for i, a := range list {
			for _, b := range list[i+1:] {
				if (a.from-b.from)*(a.to-b.to) < 0 {
					n++
				}
			}
		}
	}
	return n
}
