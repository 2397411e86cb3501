import syntax
