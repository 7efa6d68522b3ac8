package chunker_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"berth/internal/lib/chunker"
)

// random returns content that is the same for the same seed.
func random(seed uint64, n int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

// split returns copies of the chunks of a content.
func split(t interface{ Fatal(...any) }, r io.Reader) (chunks [][]byte) {
	err := chunker.Split(r, func(c []byte) error {
		chunks = append(chunks, bytes.Clone(c))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return chunks
}

// bounded fails unless the chunks join to the content and keep the bounds.
func bounded(t interface {
	Fatal(...any)
	Fatalf(string, ...any)
}, chunks [][]byte, content []byte) {
	if joined := bytes.Join(chunks, nil); !bytes.Equal(joined, content) {
		t.Fatalf("the chunks join to %d bytes, and not to the content of %d", len(joined), len(content))
	}
	for i, c := range chunks {
		if len(c) == 0 || len(c) > chunker.Max || len(c) < chunker.Min && i < len(chunks)-1 {
			t.Fatalf("chunk %d of %d has %d bytes", i, len(chunks), len(c))
		}
	}
}

func TestChunksJoinToTheContentAndKeepTheBounds(t *testing.T) {
	t.Parallel()
	for name, content := range map[string][]byte{
		"nothing":               nil,
		"one byte":              {7},
		"the least, and a byte": random(1, chunker.Min+1),
		"the most":              random(2, chunker.Max),
		"random":                random(3, 40<<20),
		"zeros":                 make([]byte, 9<<20+5),
	} {
		bounded(t, split(t, bytes.NewReader(content)), content)
		if len(content) == 0 && len(split(t, bytes.NewReader(content))) != 0 {
			t.Errorf("%s has a chunk", name)
		}
	}
}

func TestChunksHaveAboutTheAverageLength(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	n := len(split(t, bytes.NewReader(random(4, size))))
	if mean := size / n; mean < chunker.Average*3/4 || mean > chunker.Average*3/2 {
		t.Errorf("the mean of %d chunks is %d bytes", n, mean)
	}
}

// The pieces in which a reader returns the content decide nothing.
func TestReadersOfShortPiecesGetTheSameChunks(t *testing.T) {
	t.Parallel()
	content := random(5, 10<<20)
	want := split(t, bytes.NewReader(content))
	got := split(t, iotest.HalfReader(bytes.NewReader(content)))
	if len(got) != len(want) {
		t.Fatalf("%d chunks, want %d", len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("chunk %d is another", i)
		}
	}
}

// A change, an insertion or a removal changes a few chunks near it.
func TestAnEditChangesFewChunks(t *testing.T) {
	t.Parallel()
	content := random(6, 12<<20)
	known := map[[32]byte]bool{}
	for _, c := range split(t, bytes.NewReader(content)) {
		known[sha256.Sum256(c)] = true
	}
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.IntRange(0, len(content)).Draw(t, "at")
		removed := rapid.IntRange(0, min(100_000, len(content)-at)).Draw(t, "removed")
		added := random(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(0, 100_000).Draw(t, "added"))
		edited := bytes.Join([][]byte{content[:at], added, content[at+removed:]}, nil)
		chunks := split(t, bytes.NewReader(edited))
		bounded(t, chunks, edited)
		changed := 0
		for _, c := range chunks {
			if !known[sha256.Sum256(c)] {
				changed++
			}
		}
		if changed > 8 {
			t.Fatalf("%d of %d chunks changed", changed, len(chunks))
		}
	})
}

// Agents of all versions must cut alike, or they share nothing.
func TestTheCutsAreTheOnesOfEarlierVersions(t *testing.T) {
	t.Parallel()
	all := sha256.New()
	for _, c := range split(t, bytes.NewReader(random(7, 16<<20))) {
		_ = binary.Write(all, binary.BigEndian, int64(len(c)))
	}
	const want = "4103a6c0f6d740bd97d762bf2f78a247da83d05ad22dc39f1ac7e180b2c7b666"
	if got := hex.EncodeToString(all.Sum(nil)); got != want {
		t.Errorf("the lengths have the SHA-256 %s, want %s", got, want)
	}
}

func TestErrorsEndTheSplit(t *testing.T) {
	t.Parallel()
	fault := errors.New("fault")
	nothing := func([]byte) error { return nil }
	if err := chunker.Split(iotest.ErrReader(fault), nothing); !errors.Is(err, fault) {
		t.Errorf("of the reader: %v", err)
	}
	calls := 0
	err := chunker.Split(bytes.NewReader(make([]byte, 2*chunker.Max)), func([]byte) error { calls++; return fault })
	if !errors.Is(err, fault) || calls != 1 {
		t.Errorf("of the caller: %v after %d calls", err, calls)
	}
}

func FuzzChunksJoinToTheContent(f *testing.F) {
	f.Add(uint64(1), uint32(300<<10), []byte("tail"))
	f.Add(uint64(2), uint32(0), []byte{})
	f.Add(uint64(3), uint32(5<<20), []byte{0, 0, 0})
	f.Fuzz(func(t *testing.T, seed uint64, size uint32, tail []byte) {
		content := append(random(seed, int(size%(9<<20))), tail...)
		bounded(t, split(t, bytes.NewReader(content)), content)
	})
}
