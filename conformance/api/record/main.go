// Records what the Go libraries answer, as goldens for `cargo test`: one JSON file per subject in the folder given.
//
//	TZ=UTC go run . ..
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: record FOLDER")
		os.Exit(2)
	}
	subjects := map[string]any{
		"quantities": quantities(),
		"arithmetic": arithmetic(),
		"selectors":  selectors(),
		"names":      nameChecks(),
		"durations":  durations(),
		"hashes":     hashes(),
		"crons":      crons(),
		"budgets":    budgets(),
		"validation": validations(),
	}
	for name, rows := range subjects {
		if err := write(filepath.Join(os.Args[1], name+".json"), rows); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// write prints a list one row per line, so that a changed answer is a changed line.
func write(path string, rows any) error {
	raw, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return err
	}
	var out bytes.Buffer
	out.WriteString("[\n")
	for i, row := range list {
		out.Write(row)
		if i < len(list)-1 {
			out.WriteString(",")
		}
		out.WriteString("\n")
	}
	out.WriteString("]\n")
	return os.WriteFile(path, out.Bytes(), 0o644)
}
