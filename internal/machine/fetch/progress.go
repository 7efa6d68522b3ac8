package fetch

import (
	"context"
	"io"
	"sync/atomic"
)

// Progress counts the bytes of one fetch. The zero value is ready for use; all methods may be
// called concurrently.
type Progress struct {
	done, total atomic.Int64
}

// Percent returns the completed share of the bytes, from 0 to 100. known is false as long as
// the number of all bytes is not known. A try that starts again does not lower the share.
func (p *Progress) Percent() (percent int, known bool) {
	total := p.total.Load()
	if total <= 0 {
		return 0, false
	}
	return int(min(100, p.done.Load()*100/total)), true
}

type progressKey struct{}

// WithProgress returns a context whose fetch counts its bytes in p.
func WithProgress(ctx context.Context, p *Progress) context.Context {
	return context.WithValue(ctx, progressKey{}, p)
}

// progressOf returns the progress of a context, nil for none.
func progressOf(ctx context.Context) *Progress {
	p, _ := ctx.Value(progressKey{}).(*Progress)
	return p
}

// expect sets the number of all bytes.
func (p *Progress) expect(total int64) {
	if p != nil {
		p.total.Store(total)
	}
}

// restart sets the count to the number of bytes that are in place.
func (p *Progress) restart(at int64) {
	if p != nil {
		p.done.Store(at)
	}
}

// through returns a reader that counts the bytes of r.
func (p *Progress) through(r io.Reader) io.Reader {
	if p == nil {
		return r
	}
	return &counting{r, p}
}

// counting counts bytes as they are read.
type counting struct {
	io.Reader
	progress *Progress
}

// Read counts the bytes that it reads.
func (c *counting) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.progress.done.Add(int64(n))
	return n, err
}
