package attacks_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"berth"
)

// entry is one entry of a tar with its content.
type entry struct {
	tar.Header
	content string
}

func file(name, content string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}, content}
}

func symlink(name, target string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}, ""}
}

// tarOf returns a tar of these entries. The tar is incomplete if a header announces more content than its entry has.
func tarOf(entries ...entry) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if err := w.WriteHeader(&e.Header); err != nil {
			panic(fmt.Sprintf("a header of the test: %v", err))
		}
		_, _ = io.WriteString(w, e.content) // the content may differ from the header on purpose
	}
	_ = w.Close()
	return b.Bytes()
}

// packed compresses a tar for an upload, and returns the address of the tar and the compressed body.
func (f *field) packed(plain []byte) (address, body string) {
	f.t.Helper()
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b)
	if err == nil {
		_, err = z.Write(plain)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		f.t.Fatal(err)
	}
	sum := sha256.Sum256(plain)
	return string(berth.AddressOf(sum[:])), b.String()
}

// upload stores a tar and returns its address.
func (f *field) upload(token string, plain []byte) string {
	f.t.Helper()
	address, body := f.packed(plain)
	f.must(token, "POST", "/v1/uploads?address="+address, body, "Content-Type", "application/zstd")
	return address
}

func (f *field) tryUpload(plain []byte) answer {
	f.t.Helper()
	address, body := f.packed(plain)
	return f.call(f.attacker, "POST", "/v1/uploads?address="+address, body, "Content-Type", "application/zstd")
}

func hostileArchives(a *attempt) {
	setuid := file("su", "x")
	setuid.Mode = 0o4755
	link := func(kind byte, target string) entry {
		return entry{tar.Header{Name: "x", Typeflag: kind, Linkname: target}, ""}
	}
	for what, plain := range map[string][]byte{
		"parent path":   tarOf(file("../../etc/cron.d/x", "x")),
		"absolute path": tarOf(file("/etc/cron.d/x", "x")),
		"link out":      tarOf(symlink("out", "../../etc")),
		"absolute link": tarOf(symlink("out", "/etc"), file("out/x", "x")),
		"two chained links": tarOf(entry{tar.Header{Name: "a", Typeflag: tar.TypeDir, Mode: 0o755}, ""},
			symlink("a/b", ".."), symlink("c", "a/b/../.."), file("c/x", "x")),
		"file below a link": tarOf(symlink("d", "."), file("d/x", "x")),
		"hard link":         tarOf(link(tar.TypeLink, "/etc/shadow")),
		"device":            tarOf(entry{tar.Header{Name: "x", Typeflag: tar.TypeBlock, Devmajor: 8}, ""}),
		"named pipe":        tarOf(entry{tar.Header{Name: "x", Typeflag: tar.TypeFifo}, ""}),
		"setuid":            tarOf(setuid),
		"twice":             tarOf(file("x", "a"), file("x", "b")),
	} {
		got := a.tryUpload(plain)
		// Berth may drop the bits of a mode beyond 0777 instead of refusing the archive.
		if what == "setuid" && got.Good() {
			a.plainMode(plain)
			continue
		}
		if got.Status != 400 && got.Status != 422 {
			a.breach("%s: %d %s", what, got.Status, got.clipped())
		}
	}
	address, body := a.packed(tarOf(file("x", "x")))
	other := strings.Replace(address, address[len(address)-4:], "0000", 1)
	a.refused("another address", a.call(a.attacker, "POST", "/v1/uploads?address="+other, body,
		"Content-Type", "application/zstd"), 400, 422)
	a.saw("11 archives refused")
}

// plainMode checks that a program from an archive does not keep its setuid bit.
func (a *attempt) plainMode(plain []byte) {
	_, log := a.output(a.attacker, map[string]any{"workdir": a.upload(a.attacker, plain)}, "mode", "/workspace/su")
	if !strings.Contains(log, "/workspace/su 0") || strings.Contains(log, "setuid") {
		a.breach("a setuid program keeps its bit: %s", log)
	}
	a.saw("setuid dropped")
}

func archiveBombs(a *attempt) {
	huge := file("x", "")
	huge.Size = 10 << 40
	a.refused("10 TiB announced", a.tryUpload(tarOf(huge)), 400, 413, 422)

	// The header announces 9 GiB, which is over the limit of 8 GiB, and 1 GiB of content follows. The compressed body
	// has less than 1 MiB. Compressing 1 TiB would take too long.
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		a.t.Fatal(err)
	}
	w := tar.NewWriter(z)
	header := tar.Header{Name: "x", Typeflag: tar.TypeReg, Mode: 0o644, Size: 9 << 30}
	if err = w.WriteHeader(&header); err == nil {
		_, err = io.CopyN(w, &zeros{left: 1 << 30}, 1<<30)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		a.t.Fatal(err)
	}
	began := time.Now()
	address := "sha256:" + strings.Repeat("0", 64)
	a.refused(fmt.Sprintf("%d KiB that announce 9 GiB", b.Len()>>10), a.call(a.attacker, "POST",
		"/v1/uploads?address="+address, b.String(), "Content-Type", "application/zstd"), 400, 413, 422)
	if took := time.Since(began); *all && took > time.Minute {
		a.breach("the refusal took %s", took)
	}
	var many bytes.Buffer
	if z, err = zstd.NewWriter(&many); err != nil {
		a.t.Fatal(err)
	}
	w = tar.NewWriter(z)
	for i := range 100_002 {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeReg}); err != nil {
			a.t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		a.t.Fatal(err)
	}
	a.refused("100,002 files", a.call(a.attacker, "POST",
		"/v1/uploads?address="+address, many.String(), "Content-Type", "application/zstd"), 400, 413, 422)
	var stored int64
	err = a.DB.QueryRow(a.t.Context(), `SELECT count(*) FROM uploads WHERE address = $1`, address).Scan(&stored)
	if err == nil && stored > 0 {
		a.breach("an archive was stored")
	}
}

// jobID returns the id of a created job.
func jobID(body []byte) berth.JobID {
	var j struct {
		ID berth.JobID `json:"id"`
	}
	_ = json.Unmarshal(body, &j) // after an error the id is empty, and no job has an empty id
	return j.ID
}
