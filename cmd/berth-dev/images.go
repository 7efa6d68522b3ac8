package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
)

// provide imports every --image into the machine's engine, unless the engine has an image
// of that name. The fake engine needs no images.
func (m *machine) provide(ctx context.Context) error {
	if m.host == "" || len(m.cfg.Images) == 0 {
		return nil
	}
	engine, err := client.NewClientWithOpts(client.WithHost(m.host), client.WithAPIVersionNegotiation())
	if err != nil {
		return err
	}
	defer engine.Close()
	for _, i := range m.cfg.Images {
		name, path, _ := strings.Cut(i, "=")
		// By name only: an engine that outlives the stack keeps its images.
		if _, err := engine.ImageInspect(ctx, name); err == nil {
			continue
		}
		m.log.Info("image loaded into engine", "machine_id", m.name, "image", name)
		if err := importImage(ctx, engine, name, path); err != nil {
			return fmt.Errorf("import %s into the engine of %s: %w", name, m.name, err)
		}
	}
	return nil
}

// importImage imports a tar of a root filesystem as an image.
func importImage(ctx context.Context, engine *client.Client, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	answer, err := engine.ImageImport(ctx, image.ImportSource{Source: f, SourceName: "-"}, name, image.ImportOptions{})
	if err != nil {
		return err
	}
	defer answer.Close()
	// The engine reports a failure after its headers inside of the body, with status 200.
	// The body must be read to its end: the import runs as long.
	said, err := io.ReadAll(io.LimitReader(answer, 1<<20))
	if err == nil && strings.Contains(string(said), `"error"`) {
		err = fmt.Errorf("%s", said)
	}
	return err
}
