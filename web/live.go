package web

// boards are the rendered rows that readers of one page share.
type boards struct{ site *Site }

func newBoards(s *Site) *boards { return &boards{s} }
