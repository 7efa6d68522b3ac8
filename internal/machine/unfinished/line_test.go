package unfinished

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/activities/node"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestUnfinishedLineIsTheTextThatATerminalWouldShow(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", node.MaxUnfinishedLine)
	for name, c := range map[string]struct {
		output []string // each written 100 ms after the one before
		after  time.Duration
		want   string
	}{
		"redrawn":                    {[]string{"\r10%", "\r20%"}, 0, "20%"},
		"redrawn, return at the end": {[]string{"10%\r", "20%\r"}, 0, "20%"},
		"redrawn in one write":       {[]string{"\r1\r2\r3"}, 0, "3"},
		"return and text apart":      {[]string{"10%", "\r", "20", "%"}, 0, "20%"},
		"finished":                   {[]string{"\r10%\r100%\n"}, time.Hour, ""},
		"finished, and the next one": {[]string{"\r100%\nnext\r", "5%"}, 0, "5%"},
		"CRLF":                       {[]string{"line\r\n"}, time.Hour, ""},
		"young":                      {[]string{"Password: "}, 0, ""},
		"settled":                    {[]string{"Password: "}, settled, "Password: "},
		"young after a finished one": {[]string{"a\rb\nnext"}, 0, ""},
		"longer than the most":       {[]string{long + "y\r"}, 0, long},
		"cut in a character":         {[]string{"\r" + long[1:] + "é"}, 0, long[1:]},
		"half a character":           {[]string{"\rgr\xc3"}, 0, "gr"},
		"zero bytes":                 {[]string{"\ra\x00b"}, 0, "ab"},
		"nothing but returns":        {[]string{"\r\r"}, time.Hour, ""},
	} {
		now := start
		var l line
		for _, p := range c.output {
			now = now.Add(100 * time.Millisecond)
			l.write([]byte(p), now)
		}
		if got := l.shown(now.Add(c.after)); got != c.want {
			t.Errorf("%s: %.80q, want %.80q", name, got, c.want)
		}
	}
}

func TestPictureIsOfTheStreamThatChangedLast(t *testing.T) {
	t.Parallel()
	var s lines
	at := func(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }
	if got := s.picture(at(0)); got.Text != "" {
		t.Errorf("without output: %+v", got)
	}
	s[0].write([]byte("\rout"), at(1))
	s[1].write([]byte("\rerr"), at(2))
	if got, want := s.picture(at(3)), (node.UnfinishedLine{At: at(2), Stderr: true, Text: "err"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	s[1].write([]byte("\n"), at(4))
	if got, want := s.picture(at(5)), (node.UnfinishedLine{At: at(1), Text: "out"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// frame returns output as the engine sends it.
func frame(stream byte, output string) []byte {
	b := []byte{stream, 0, 0, 0}
	return append(binary.BigEndian.AppendUint32(b, uint32(len(output))), output...)
}

func TestFramesAreReadHoweverTheyAreCut(t *testing.T) {
	t.Parallel()
	stream := joined(frame(1, "\rout"), frame(2, "\rerr"), frame(2, ""), frame(1, "put"))
	for size := 1; size <= len(stream); size++ {
		var l lines
		d := demux{to: &l}
		for rest := stream; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			if err := d.write(rest[:min(size, len(rest))], start); err != nil {
				t.Fatal(err)
			}
		}
		if out, errs := l[0].shown(start), l[1].shown(start); out != "output" || errs != "err" {
			t.Fatalf("in pieces of %d: %q and %q", size, out, errs)
		}
	}
	if err := (&demux{to: &lines{}}).write([]byte("plain text"), start); err == nil {
		t.Error("output without frames was taken for frames")
	}
}

func joined(list ...[]byte) []byte { return bytes.Join(list, nil) }

func TestReaderLeavesAContainerThatWritesTooFast(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		step time.Duration // of the clock, for each read
		want error
	}{
		"too fast": {time.Millisecond, node.ErrOutputTooFast},
		"slow":     {20 * time.Millisecond, nil}, // 64 KiB at a time: 3 MiB/s
	} {
		near, far := net.Pipe()
		now := start
		r := newReader(func() error { return nil }, func(node.UnfinishedLine) {},
			func() time.Time { now = now.Add(c.step); return now })
		go func() {
			defer far.Close()
			output := frame(1, strings.Repeat("x", 64<<10))
			for range 2 * MaxRate / len(output) {
				if _, err := far.Write(output); err != nil {
					return
				}
			}
		}()
		if err := r.run(patient{near}, near); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		_ = near.Close()
	}
}

// Output in small pieces, far below MaxRate, costs few pictures, and no more than MaxReads reads in a second.
func TestSmallPiecesCostLittle(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reads int // within a second
		want  error
	}{
		"many":     {MaxReads - 2, io.ErrClosedPipe},
		"too many": {MaxReads + 1, node.ErrOutputTooFast},
	} {
		now, begun := start, start.Add(time.Second)
		r := newReader(func() error { return nil }, func(node.UnfinishedLine) {}, func() time.Time { return now })
		pictures, reads := 0, 0
		r.look = func(at time.Time) node.UnfinishedLine {
			if at.After(begun) {
				pictures++
			}
			return r.lines.picture(at)
		}
		err := r.run(patient{}, readerFunc(func(p []byte) (int, error) {
			switch reads++; {
			case reads == 1: // a picture is sent
				return copy(p, frame(2, "\r"+strings.Repeat("x", node.MaxUnfinishedLine))), nil
			case reads == 2:
				now = begun
			case reads > c.reads+2:
				return 0, io.ErrClosedPipe
			default:
				now = now.Add(time.Second / (MaxReads + 10))
			}
			return copy(p, frame(1, "\n")), nil
		}))
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v after %d reads, want %v", name, err, reads, c.want)
		}
		if most := int(time.Second/tick) + 1; pictures > most || pictures < most-2 {
			t.Errorf("%s: %d pictures within a second of %d reads, want at most %d", name, pictures, c.reads, most)
		}
	}
}

// A picture that has not changed does not delay the next one.
func TestChangeIsSeenSoonAfterAPause(t *testing.T) {
	t.Parallel()
	now := start
	var sent []string
	r := newReader(func() error { return nil }, func(p node.UnfinishedLine) {
		sent = append(sent, fmt.Sprint(now.Sub(start), " ", p.Text))
	}, func() time.Time { return now })
	err := r.run(patient{}, readerFunc(func(p []byte) (int, error) {
		now = now.Add(tick)
		switch now.Sub(start) {
		case time.Second:
			return copy(p, frame(1, "\r10%")), nil
		case 5 * time.Second:
			return copy(p, frame(1, "\r20%")), nil
		case 5*time.Second + tick:
			return copy(p, frame(1, "\r30%")), nil
		case 8 * time.Second:
			return 0, io.EOF
		}
		return 0, os.ErrDeadlineExceeded
	}))
	if want := []string{"1s 10%", "5s 20%", "6s 30%"}; err != nil || !slices.Equal(sent, want) {
		t.Errorf("pictures %q, %v, want %q", sent, err, want)
	}
}

func TestReaderSetsTheTimerBeforeEachRead(t *testing.T) {
	t.Parallel()
	var acts []string
	near, far := net.Pipe()
	go func() {
		_, _ = far.Write(frame(1, "a\r"))
		_ = far.Close()
	}()
	r := newReader(func() error { acts = append(acts, "arm"); return nil }, func(node.UnfinishedLine) {}, time.Now)
	err := r.run(patient{near}, readerFunc(func(p []byte) (int, error) {
		acts = append(acts, "read")
		return near.Read(p)
	}))
	if err != nil || len(acts) < 4 {
		t.Fatalf("%v, acts %q", err, acts)
	}
	for i, act := range acts {
		if want := []string{"arm", "read"}[i%2]; act != want {
			t.Fatalf("acts %q, want arm and read in turn", acts)
		}
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestPictureThatIsNotTakenIsReplaced(t *testing.T) {
	t.Parallel()
	w := &writer{out: io.Discard, next: make(chan node.UnfinishedLine, 1)}
	w.put(node.UnfinishedLine{Text: "old"})
	w.put(node.UnfinishedLine{Text: "new"})
	if got := <-w.next; got.Text != "new" {
		t.Errorf("%+v, want the last picture", got)
	}
}

// patient is a connection without deadlines. A pipe refuses a deadline after its other end was closed.
type patient struct{ net.Conn }

func (patient) SetReadDeadline(time.Time) error { return nil }
