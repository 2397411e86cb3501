package export

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/avgpipe/avgpipe/stage/model"
)

// configFile is m's config.json, in which the classes have the names that the card in dir gives them.
func configFile(m *model.Model, dir string) ([]byte, error) {
	config := m.Config()
	card, _, err := ReadCard(nil, dir)
	if err != nil {
		return nil, err
	}
	if labels := card.Data.Labels; config["id2label"] != nil && len(labels) == m.Loss.Classes() {
		names, numbers := map[string]string{}, map[string]int{}
		for i, label := range labels {
			names[strconv.Itoa(i)], numbers[label] = label, i
		}
		config["id2label"], config["label2id"] = names, numbers
	}
	return json.MarshalIndent(config, "", "  ")
}

// Labels are the names that a model directory's config.json gives its classes, in order; nil when it names none.
func Labels(dir string) ([]string, error) {
	path := filepath.Join(dir, ConfigFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var config struct {
		Names map[string]string `json:"id2label"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("read id2label of %s: %w", path, err)
	}
	var labels []string
	for i := range len(config.Names) {
		name, ok := config.Names[strconv.Itoa(i)]
		if !ok {
			return nil, fmt.Errorf("read id2label of %s: %d classes, and none has the number %d", path, len(config.Names), i)
		}
		labels = append(labels, name)
	}
	return labels, nil
}
