package table

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/parquet-go/parquet-go"
)

// parquet finds the wanted columns, and reads them side by side, a page of each at a time. The library that reads the file panics on
// some that are damaged: that becomes an error.
func (r *rows) parquet(file *os.File) (err error) {
	defer func() {
		if r.yielding {
			return
		}
		if p := recover(); p != nil {
			err = fmt.Errorf("the file is damaged: %v", p)
		}
	}()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := checkFooter(file, info.Size()); err != nil {
		return err
	}
	f, err := parquet.OpenFile(file, info.Size(), parquet.SkipBloomFilters(true), parquet.SkipPageIndex(true))
	if err != nil {
		return fmt.Errorf("not a Parquet file: %w", err)
	}
	var leaves []int // of the wanted columns
	for _, column := range r.Columns {
		leaf, ok := f.Schema().Lookup(column)
		switch {
		case !ok:
			var there []string
			for _, field := range f.Schema().Fields() {
				there = append(there, field.Name())
			}
			return &missingError{column, there}
		case leaf.MaxRepetitionLevel > 0:
			return fmt.Errorf("column %q holds lists, not one value per row", column)
		}
		leaves = append(leaves, leaf.ColumnIndex)
	}
	for i, group := range f.RowGroups() {
		columns := make([]parquetColumn, len(leaves))
		r.line = r.count + 1
		for k, leaf := range leaves {
			if err := checkPages(file, info.Size(), &f.Metadata().RowGroups[i].Columns[leaf]); err != nil {
				return fmt.Errorf("column %q: %w", r.Columns[k], err)
			}
			columns[k].pages = group.ColumnChunks()[leaf].Pages()
		}
		err := r.group(columns)
		for k := range columns {
			err = errors.Join(err, columns[k].pages.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// group reads the rows of a row group.
func (r *rows) group(columns []parquetColumn) error {
	for {
		r.line = r.count + 1
		for i := range columns {
			v, err := columns[i].next()
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				return err
			case v.IsNull():
				return fmt.Errorf("column %q is null", r.Columns[i])
			}
			r.values[i] = v.String()
		}
		if err := r.pass(r.line); err != nil {
			return err
		}
	}
}

// parquetColumn gives the values of one column of a row group.
type parquetColumn struct {
	pages  parquet.Pages
	values parquet.ValueReader
	buffer [256]parquet.Value
	have   []parquet.Value
}

func (c *parquetColumn) next() (parquet.Value, error) {
	for len(c.have) == 0 {
		if c.values == nil {
			page, err := c.pages.ReadPage()
			if err != nil {
				return parquet.Value{}, err
			}
			c.values = page.Values()
		}
		n, err := c.values.ReadValues(c.buffer[:])
		c.have = c.buffer[:n]
		if errors.Is(err, io.EOF) {
			c.values = nil
		} else if err != nil {
			return parquet.Value{}, err
		}
	}
	v := c.have[0]
	c.have = c.have[1:]
	return v, nil
}
